"""The bounds of the parameters of a search, and its grids."""

from __future__ import annotations

import numpy as np
import pytest

from triton_sam.errors import ConfigurationError
from triton_sam.everything.parameters import MAX_CROP_LAYERS, MAX_POINTS_PER_SIDE, Parameters, parameters_of

SHARES = ("pred_iou_thresh", "stability_score_thresh", "box_nms_thresh")


def test_bounds_belong_to_the_range():
    for bound in (0, 1):
        parameters_of("sam2", dict.fromkeys(SHARES, bound))
    parameters_of("sam2", {"points_per_side": 1, "crop_overlap_ratio": 0.0})
    parameters_of("sam2", {"points_per_side": MAX_POINTS_PER_SIDE, "crop_n_layers": MAX_CROP_LAYERS})


@pytest.mark.parametrize(
    "given",
    [
        {"points_per_side": 0},
        *({name: share} for name in SHARES for share in (1.01, -0.01)),
    ],
    ids=str,
)
def test_what_lies_beyond_them_is_refused(given):
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        parameters_of("sam2", given)


def test_a_layer_whose_share_of_points_is_below_one_has_none():
    assert Parameters(points_per_side=1, crop_n_layers=1, crop_n_points_downscale_factor=2).grid(1).shape == (0, 2)


def test_a_grid_of_whole_numbers_has_floats():
    assert Parameters(points_per_side=None, point_grids=[[[0, 1]]]).grid(0).dtype == np.float64


def test_grids_reach_the_edges_and_may_be_empty() -> None:
    grids = [[[0.0, 1.0], [1.0, 0.0]], []]
    parameters = Parameters(points_per_side=None, point_grids=grids, crop_n_layers=1)
    np.testing.assert_array_equal(parameters.grid(0), grids[0])
    assert parameters.grid(1).shape == (0, 2)
    with pytest.raises(ConfigurationError, match="point_grids must hold arrays"):
        Parameters(points_per_side=None, point_grids=[[[0.5]]])


def test_what_the_caller_left_open_is_no_parameter_of_theirs() -> None:
    with pytest.raises(ConfigurationError, match="no parameter 'left_open'") as caught:
        parameters_of("sam2", {"left_open": frozenset()})
    assert "left_open" not in str(caught.value).partition("the parameters are")[2]
