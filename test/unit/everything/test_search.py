"""The bounds of the parameters of a search, its grids, and one part of it: questions, counts, masks."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.rectangles import found_mask

from triton_sam import Cleanup
from triton_sam.errors import ConfigurationError
from triton_sam.everything.parameters import Parameters, parameters_of
from triton_sam.everything.search import Found, FoundMask, Part, packed, search_in_parts, see
from triton_sam.families import get_family

FAMILY = get_family("sam2")
CROP, WHOLE = (40, 10, 104, 74), (200, 100)
POINTS = np.array([[10.0, 20.0], [30.0, 40.0]])
OPEN = {"pred_iou_thresh": 0.0, "stability_score_thresh": 0.0}


def mask_at(left: int, top: int, right: int, bottom: int) -> npt.NDArray[np.float32]:
    """Return logits (64,64): 5 in a rectangle, -5 around it."""
    logits = np.full((64, 64), -5, np.float32)
    logits[top:bottom, left:right] = 5
    return logits


MIDDLE = mask_at(24, 24, 40, 40)


def seen_with(
    logits: npt.NDArray[np.float32] = MIDDLE, scores: tuple[float, float] = (0.5, 0.9), **parameters: object
) -> tuple[Found, list[tuple[Any, ...]]]:
    """Search with a decoder that answers the same logits always, and scores between two numbers."""
    asked: list[tuple[Any, ...]] = []

    def decode(image, points, masks, multimask):
        asked.append((image, points, masks, multimask))
        count, candidates = len(points), 3 if multimask else 1
        answer = np.broadcast_to(logits, (count, candidates, 64, 64))
        return answer, np.linspace(*scores, count * candidates).reshape(count, candidates)

    part = Part("image", POINTS, CROP, WHOLE, Parameters(**{**OPEN, **parameters}))
    return see(part, FAMILY, decode), asked


def test_each_point_is_asked_for_once():
    seen, ((image, points, masks, multimask),) = seen_with()
    assert (seen.decodes, seen.candidates, len(seen.masks)) == (2, 6, 6)
    assert (image, points.shape, masks, multimask) == ("image", (2, 1, 2), None, True)
    assert [mask.point for mask in seen.masks] == [(10, 20)] * 3 + [(30, 40)] * 3
    assert [mask.score for mask in seen.masks] == pytest.approx([0.5, 0.58, 0.66, 0.74, 0.82, 0.9])
    assert {(mask.box, mask.crop, mask.size) for mask in seen.masks} == {((24, 24, 39, 39), CROP, WHOLE)}
    assert {mask.bits.nbytes for mask in seen.masks} == {16 * 16 // 8}  # a search keeps a thousand


def test_refined_masks_are_counted_beside_the_first_ones():
    seen, (_, (_, points, masks, multimask)) = seen_with(use_m2m=True)
    assert (seen.decodes, seen.candidates) == (2 + 6, 6)
    assert points.shape == (6, 1, 2)
    assert multimask is False
    np.testing.assert_array_equal(masks, np.broadcast_to(MIDDLE, (6, 1, 64, 64)))
    _, (_, (_, _, clamped, _)) = seen_with(10 * MIDDLE, use_m2m=True)
    assert (clamped.min(), clamped.max()) == (-32, 32)


@pytest.mark.parametrize(
    ("logits", "parameters", "dropped"),
    [
        (MIDDLE, {"pred_iou_thresh": 0.7}, {"pred_iou_thresh": 3}),
        (MIDDLE / 10, {"stability_score_thresh": 0.5}, {"stability_score_thresh": 6}),
        (mask_at(5, 24, 40, 40), {}, {"the edge of a crop": 6}),
    ],
)
def test_dropped_masks_are_counted_by_the_filter(logits, parameters, dropped):
    seen, _ = seen_with(logits, **parameters)
    assert dict(seen.dropped) == dropped
    assert len(seen.masks) == 6 - sum(dropped.values())


def test_a_threshold_of_0_drops_nothing_and_pixels_at_it_are_no_part_of_a_mask():
    empty = np.full((64, 64), -5, np.float32)  # its stability is NaN
    seen, _ = seen_with(empty, scores=(-0.1, 0.0), crop_n_layers=0)
    assert seen.dropped["pred_iou_thresh"] == seen.dropped["stability_score_thresh"] == 0
    flat = np.where(MIDDLE > 0, MIDDLE, 0).astype(np.float32)
    seen, _ = seen_with(flat)
    assert {mask.box for mask in seen.masks} == {(24, 24, 39, 39)}


def test_the_clean_up_knows_the_point_of_a_mask():
    two = np.maximum(mask_at(22, 22, 27, 30), mask_at(29, 36, 42, 43))
    points = {(10.0, 20.0): (22, 22, 41, 42), (30.0, 40.0): (29, 36, 41, 42)}  # the first point is in no part
    seen, _ = seen_with(two, cleanup=Cleanup(keep_clicked=True))
    assert {mask.point: mask.box for mask in seen.masks} == points


def test_a_found_mask_becomes_an_object_in_the_image():
    bits = np.zeros((64, 64), np.bool_)
    bits[20:30, 5:15] = True
    box = (5, 20, 14, 29)
    found = FoundMask(packed(bits, box), 0.75, 0.5, (7.0, 22.0), box, CROP, WHOLE)
    assert found.placed_box == (45, 30, 54, 39)
    segment = found.segment()
    assert segment.box == (45, 30, 55, 40)
    assert segment.mask.shape == (100, 200)
    assert (segment.object_index, segment.candidate, segment.logits) == (0, 0, None)
    assert (segment.score, segment.stability_score, segment.point, segment.crop_box) == (0.75, 0.5, (47, 32), CROP)


@pytest.mark.parametrize(("threshold", "kept"), [(0.7, 2), (1.0, 3)])
def test_of_an_object_in_two_crops_that_of_the_smaller_crop_is_kept(threshold, kept):
    drawn = np.zeros((2, 64, 64), np.bool_)
    drawn[0, 20:30, 5:15] = drawn[1, 40:60, 5:15] = True
    corner = (0, 0, 43, 43)
    answers = {
        (0, 0, 64, 64): [found_mask(mask, crop=(0, 0, 64, 64)) for mask in drawn],
        corner: [found_mask(drawn[0], crop=corner)],
    }
    parameters = Parameters(points_per_side=1, crop_n_layers=1, crop_nms_thresh=threshold)
    search = search_in_parts((64, 64), parameters)
    answer, found = None, None
    while found is None:
        try:
            step = search.send(answer)
        except StopIteration as ended:
            found = ended.value
        else:
            answer = Found(answers.get(step.crop, [])) if isinstance(step, Part) else None
    assert len(found.masks) == kept
    assert found.dropped["crop_nms_thresh"] == 3 - kept
    assert {each.crop for each in found.masks if each.placed_box == (5, 20, 14, 29)} >= {corner}


# Parameters

SHARES = ("pred_iou_thresh", "stability_score_thresh", "box_nms_thresh")


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


def test_grids_have_floats_reach_the_edges_and_may_be_empty():
    grids = [[[0, 1], [1, 0]], []]
    parameters = Parameters(points_per_side=None, point_grids=grids, crop_n_layers=1)
    np.testing.assert_array_equal(parameters.grid(0), grids[0])
    assert parameters.grid(0).dtype == np.float64
    below_one = Parameters(points_per_side=1, crop_n_layers=1, crop_n_points_downscale_factor=2)
    assert parameters.grid(1).shape == below_one.grid(1).shape == (0, 2)
