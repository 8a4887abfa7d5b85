"""Automatic masks by clicks: each step equals the official code, and the parameters do as they say."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import strategies as _profiles  # noqa: F401 - loads the profiles of hypothesis
from support.rectangles import found_mask

from triton_sam.everything import search
from triton_sam.everything.parameters import Parameters
from triton_sam.everything.search import Found, drop_small_regions
from triton_sam.families import get_family
from triton_sam.masks.boxes import suppressed

amg = pytest.importorskip("sam2.utils.amg")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.export


@pytest.mark.parametrize(("count", "layers", "factor"), [(32, 0, 1), (16, 2, 2), (5, 1, 3)])
def test_grids_equal_the_official_ones(count, layers, factor):
    chosen = Parameters(count, crop_n_layers=layers, crop_n_points_downscale_factor=factor)
    for layer, grid in enumerate(amg.build_all_layer_point_grids(count, layers, factor)):
        np.testing.assert_array_equal(chosen.grid(layer), grid)


@given(st.tuples(st.integers(1, 2000), st.integers(1, 2000)), st.sampled_from([0, 1, 3]))
@example((1, 1), 3)
@example((640, 640), 1)
def test_crops_equal_the_official_ones(size, layers):
    boxes, numbers = amg.generate_crop_boxes(size[::-1], layers, 512 / 1500)
    assert list(search.crop_boxes(size, layers, 512 / 1500)) == [
        (tuple(box), number) for box, number in zip(boxes, numbers, strict=True)
    ]


@pytest.mark.parametrize("threshold", [0.25, 0.5, 0.6, 0.8])
def test_suppression_equals_torchvision(threshold):
    """Also with empty boxes, equal scores, and an IoU exactly at the threshold, which small boxes often have."""
    from torchvision.ops import nms

    rng = np.random.default_rng(0)
    for _ in range(40):
        low = rng.integers(0, 6, (30, 2))
        boxes = np.concatenate([low, low + rng.integers(0, 11, (30, 2))], axis=1)
        scores = rng.integers(0, 30, 30) / 30
        official = nms(torch.tensor(boxes).float(), torch.tensor(scores).float(), threshold).tolist()
        assert suppressed([tuple(box) for box in boxes.tolist()], scores.tolist(), threshold) == official
    assert suppressed([], [], 0.5) == []


def test_scores_exactly_at_a_threshold_are_treated_as_by_torch(monkeypatch):
    monkeypatch.setattr(search, "full_size_masks", lambda logits, *_: [logits > each for each in _[-1]])
    low = np.zeros((4, 5), np.float32)
    low.ravel()[:19] = 2  # 19 of 20 pixels are stable: 0.95, the default threshold
    for score, kept in [(0.9, True), (float(np.float32(0.8)), False)]:  # torch.tensor([0.8]) > 0.8 is False
        chosen = Parameters(1, mask_threshold=-0.5)
        part, seen = search.Part(None, np.zeros((0, 2)), (0, 0, 5, 4), (5, 4), chosen), search.Found()
        search._consider(part, get_family("sam2"), seen, low, score, (1.0, 1.0))
        assert bool(seen.masks) is kept


def test_stability_and_boxes_equal_the_official_ones():
    rng = np.random.default_rng(4)
    logits = np.round(rng.normal(0, 4, (5, 30, 40))).astype(np.float32) / 2  # many lie exactly at a threshold
    logits[1] = -9
    official = amg.calculate_stability_score(torch.tensor(logits), 0.5, 1.0).numpy()
    assert np.isnan(official[1])
    expected = np.nan_to_num(official)  # NaN is not JSON
    np.testing.assert_array_equal([search.stability_of(each > 1.5, each > -0.5) for each in logits], expected)
    boxes = amg.batched_mask_to_box(torch.tensor(logits > 0.5)).tolist()
    assert [list(search.last_pixels(each > 0.5)) for each in logits] == boxes


def test_cut_off_masks_equal_the_official_ones():
    rng = np.random.default_rng(5)
    crop, whole = (100, 0, 300, 150), (300, 200)
    corners = rng.integers(0, 100, (300, 2))
    boxes = np.concatenate([corners, corners + rng.integers(0, 100, (300, 2))], axis=1)
    official = amg.is_box_near_crop_edge(torch.tensor(boxes), list(crop), [0, 0, *whole]).tolist()
    assert [search.is_cut_off(tuple(box), crop, whole) for box in boxes.tolist()] == official
    assert 20 < sum(official) < 280


def test_small_regions_are_removed_as_the_official_generator_does_it():
    """Masks with holes and specks, and two that are equal after it."""
    official = pytest.importorskip("segment_anything.utils.amg")
    generator = pytest.importorskip("segment_anything.automatic_mask_generator")
    pytest.importorskip("cv2")
    masks = [np.zeros((60, 80), bool) for _ in range(4)]
    for mask, (x, y) in zip(masks, [(5, 5), (40, 20), (5, 5), (50, 40)], strict=True):
        mask[y : y + 18, x : x + 24] = True
    masks[0][8:10, 8:10] = False  # a hole
    masks[1][50:52, 2:5] = True  # a speck
    data = official.MaskData(
        rles=[official.mask_to_rle_pytorch(torch.tensor(mask[None]))[0] for mask in masks],
        boxes=official.batched_mask_to_box(torch.tensor(np.stack(masks))),
        iou_preds=torch.tensor([0.9] * 4),
    )
    generator.SamAutomaticMaskGenerator.postprocess_small_regions(data, 10, 0.7)
    found = Found([found_mask(mask) for mask in masks])
    found.dropped["min_mask_region_area"] = 2  # those of an earlier crop
    drop_small_regions(found, Parameters(min_mask_region_area=10))
    assert len(found.masks) == 3
    assert found.dropped == {"min_mask_region_area": 3}
    for each, rle, box in zip(found.masks, data["rles"], data["boxes"].tolist(), strict=True):
        assert np.array_equal(each.segment().mask, official.rle_to_mask(rle))
        assert list(each.box) == box
