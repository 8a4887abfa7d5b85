"""The bounds of the parameters of a search, and its grids."""

from __future__ import annotations

import numpy as np
import pytest

from triton_sam.errors import ConfigurationError
from triton_sam.everything.parameters import MAX_CROP_LAYERS, MAX_POINTS_PER_SIDE, Parameters, parameters_of
from triton_sam.masks.cleanup import Cleanup

SHARES = ("pred_iou_thresh", "stability_score_thresh", "box_nms_thresh")


def test_bounds_belong_to_the_range():
    for bound in (0, 1):
        parameters_of("sam2", dict.fromkeys(SHARES, bound))
    parameters_of("sam2", {"points_per_side": 1, "crop_overlap_ratio": 0.0})
    parameters_of("sam2", {"points_per_side": MAX_POINTS_PER_SIDE, "crop_n_layers": MAX_CROP_LAYERS})


WRONG = {
    "points_per_side": [0, -1, 257, 8.5, "many", True],
    "crop_n_layers": [4, -1, 1.5],
    "crop_n_points_downscale_factor": [0],
    "min_mask_region_area": [-2],
    "crop_overlap_ratio": [1.0, -0.1],
    "mask_threshold": [float("nan"), 10**400],
    "stability_score_offset": [float("inf"), -1],
    "cleanup": ["all", Cleanup(mask_threshold=1)],
    "point_grids": [5, np.array(5), ["a"], [[0.1, 0.2, 0.3]], [[[0.1, 0.2], [0.3]]], [[[0.5]]], [[[0.1, 10**400]]]],
    **{name: [1.01, -0.01, "high"] for name in SHARES},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_its_parameter(name):
    others = {"points_per_side": None} if name == "point_grids" else {}
    for value in WRONG[name]:
        with pytest.raises(ConfigurationError, match=name):
            parameters_of("sam2", {name: value, **others})


def test_grids_and_layers_belong_together():
    for given in ({"points_per_side": None}, {"point_grids": [[[0.5, 0.5]]]}):
        with pytest.raises(ConfigurationError, match="exactly one of points_per_side and point_grids"):
            Parameters(**given)
    with pytest.raises(ConfigurationError, match="need 2 point_grids"):
        Parameters(points_per_side=None, point_grids=[np.zeros((1, 2))], crop_n_layers=1)


def test_a_layer_whose_share_of_points_is_below_one_has_none():
    assert Parameters(points_per_side=1, crop_n_layers=1, crop_n_points_downscale_factor=2).grid(1).shape == (0, 2)


def test_a_grid_of_whole_numbers_has_floats():
    assert Parameters(points_per_side=None, point_grids=[[[0, 1]]]).grid(0).dtype == np.float64


def test_grids_reach_the_edges_and_may_be_empty() -> None:
    grids = [[[0.0, 1.0], [1.0, 0.0]], []]
    parameters = Parameters(points_per_side=None, point_grids=grids, crop_n_layers=1)
    np.testing.assert_array_equal(parameters.grid(0), grids[0])
    assert parameters.grid(1).shape == (0, 2)


def test_what_the_caller_left_open_is_no_parameter_of_theirs() -> None:
    with pytest.raises(ConfigurationError, match="no parameter 'left_open'") as caught:
        parameters_of("sam2", {"left_open": frozenset()})
    assert "left_open" not in str(caught.value).partition("the parameters are")[2]
