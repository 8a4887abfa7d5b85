"""One part of a search: its questions, its counts, and its masks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from triton_sam.errors import ConfigurationError
from triton_sam.everything.parameters import Parameters, parameters_of
from triton_sam.everything.parts import Decode, FoundMask, Part, Seen, see
from triton_sam.families import get_family

FAMILY = get_family("sam2")
CROP, WHOLE = (40, 10, 104, 74), (200, 100)
POINTS = np.array([[10.0, 20.0], [30.0, 40.0]])
OPEN = {"pred_iou_thresh": 0.0, "stability_score_thresh": 0.0}


def answer(decode: Decode) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """A mask in the middle of the crop for each candidate."""
    count = 3 if decode.multimask else 1
    logits = np.full((len(decode.points), count, 64, 64), -5, np.float32)
    logits[:, :, 24:40, 24:40] = 5
    return logits, np.linspace(0.5, 0.9, len(decode.points) * count, dtype=np.float32).reshape(-1, count)


def seen_with(**parameters: object) -> tuple[Seen, list[Decode]]:
    asked: list[Decode] = []
    steps = see(Part("image", POINTS, CROP, WHOLE, Parameters(**{**OPEN, **parameters})), FAMILY)
    decode = next(steps)
    while True:
        asked.append(decode)
        try:
            decode = steps.send(answer(decode))
        except StopIteration as done:
            return done.value, asked


def test_each_point_is_asked_for_once() -> None:
    seen, (asked,) = seen_with()
    assert (seen.decodes, seen.candidates, len(seen.masks)) == (2, 6, 6)
    assert asked.points.shape == (2, 1, 2)
    assert asked.labels.tolist() == [[1], [1]]
    assert [mask.point for mask in seen.masks] == [(10, 20)] * 3 + [(30, 40)] * 3


def test_refined_masks_are_counted_beside_the_first_ones() -> None:
    seen, (_, refined) = seen_with(use_m2m=True)
    assert (seen.decodes, seen.candidates) == (2 + 6, 6)
    assert refined.points.shape == (6, 1, 2)
    assert refined.masks is not None
    assert refined.masks.shape == (6, 1, 64, 64)


def test_dropped_masks_are_counted_by_the_filter() -> None:
    seen, _ = seen_with(pred_iou_thresh=0.7)
    assert (len(seen.masks), dict(seen.dropped)) == (3, {"pred_iou_thresh": 3})


def test_a_found_mask_becomes_an_object_in_the_image() -> None:
    bits = np.zeros((64, 64), np.bool_)
    bits[20:30, 5:15] = True
    found = FoundMask(np.packbits(bits), 0.75, 0.5, (7.0, 22.0), (5, 20, 14, 29), CROP, WHOLE)
    assert found.placed_box == (45, 30, 54, 39)
    segment = found.segment()
    assert segment.box == (45, 30, 55, 40)
    assert segment.mask.shape == (100, 200)
    assert (segment.object_index, segment.candidate, segment.logits) == (0, 0, None)
    assert (segment.score, segment.stability_score, segment.point, segment.crop_box) == (0.75, 0.5, (47, 32), CROP)


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
