"""Clean-up of masks against scipy (connected parts) and the official functions (holes, specks, small regions)."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import strategies as _profiles  # noqa: F401 - loads the profiles of hypothesis

from triton_sam.errors import InputError
from triton_sam.masks import Cleanup, resize_logits
from triton_sam.masks.cleanup import (
    clip_to_box,
    find_parts,
    innermost_points,
    keep_clicked,
    remove_small_regions,
    smooth_outline,
)


def noise(shape, share):
    return np.random.default_rng(7).random(shape) < share


def blobs(seed=0, side=256, sigma=2.0):
    """Return logits (side,side) with parts and holes of many sizes."""
    ndimage = pytest.importorskip("scipy.ndimage")
    values = ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((side, side)), sigma)
    return (values * 20).astype(np.float32)


def spiral(side):
    """Return one part that winds around itself: any two of its neighbouring rows have runs of distant places."""
    mask = np.zeros((side, side), np.bool_)
    low, high = 0, side - 1
    while high - low > 3:
        mask[low, low : high + 1] = mask[low : high + 1, high] = mask[high, low : high + 1] = True
        mask[low + 2 : high + 1, low] = mask[low + 2, low : low + 3] = True
        low, high = low + 2, high - 2
    return mask


any_mask = hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40)) | st.builds(
    noise, st.tuples(st.integers(1, 90), st.integers(1, 90)), st.floats(0, 1)
)


@given(any_mask)
@example(np.zeros((256, 256), np.bool_))
@example(np.ones((256, 256), np.bool_))
@example(noise((256, 256), 0.4))
def test_parts_are_those_of_scipy(mask):
    ndimage = pytest.importorskip("scipy.ndimage")
    expected, count = ndimage.label(mask, np.ones((3, 3)))
    parts = find_parts(mask)
    labels = np.zeros(mask.size, np.int64)
    for start, end, label in zip(parts.starts, parts.ends, parts.labels, strict=True):
        labels[start:end] = label + 1
    np.testing.assert_array_equal(labels.reshape(mask.shape), expected)  # both number them by their first pixels
    np.testing.assert_array_equal(parts.areas, np.bincount(expected.ravel(), minlength=count + 1)[1:])
    kept = np.arange(count) % 2 == 0
    np.testing.assert_array_equal(parts.mask(kept), np.isin(expected, np.flatnonzero(kept) + 1))


@pytest.mark.parametrize("mask", [spiral(401), ~spiral(401), np.tri(300, dtype=np.bool_)[::-1]])
def test_parts_of_long_chains(mask):
    ndimage = pytest.importorskip("scipy.ndimage")
    assert len(find_parts(mask)) == ndimage.label(mask, np.ones((3, 3)))[1]


def test_innermost_points_lie_in_the_largest_parts():
    mask = noise((90, 70), 0.4)
    mask[:2, :] = mask[3:23, 5:45] = True
    parts = find_parts(mask)
    points = innermost_points(parts, 5)
    labels = [parts.at(int(y), int(x)) for x, y in points]
    assert sorted(parts.areas[labels].tolist()) == sorted(parts.areas.tolist())[-5:]
    assert len(set(labels)) == 5
    square = np.zeros((20, 30), np.bool_)
    square[4:15, 6:17] = True
    assert innermost_points(find_parts(square), 3) == [[11.5, 9.5]]
    assert innermost_points(find_parts(square & False), 3) == []


@pytest.mark.parametrize(
    ("seed", "options", "threshold"),
    [
        (1, {"max_hole_area": 9}, 0.75),
        (3, {"max_sprinkle_area": 12.5}, -1.5),
        (0, {"max_hole_area": 30, "max_sprinkle_area": 40}, 0.75),
    ],
)
def test_holes_and_specks_equal_the_official_predictor(seed, options, threshold, monkeypatch):
    """The official function, with scipy in the place of its CUDA kernel, which labels with 8-connectivity, too."""
    torch = pytest.importorskip("torch")
    ndimage = pytest.importorskip("scipy.ndimage")
    transforms = pytest.importorskip("sam2.utils.transforms")

    def components(masks):
        labels = np.stack([ndimage.label(mask[0].numpy(), np.ones((3, 3)))[0][None] for mask in masks])
        areas = [np.append(0, np.bincount(each.ravel())[1:])[each] for each in labels]
        return torch.from_numpy(labels), torch.from_numpy(np.stack(areas))

    monkeypatch.setattr(torch.jit, "script", lambda module: module)  # deprecated, and of the image's transform
    monkeypatch.setattr("sam2.utils.misc.get_connected_components", components)
    grain = np.random.default_rng(seed).normal(size=blobs(seed).shape).astype(np.float32)
    logits = np.stack([blobs(seed), blobs(seed + 10), grain])[None]
    transform = transforms.SAM2Transforms(1024, threshold, **options)
    official = transform.postprocess_masks(torch.from_numpy(logits), (300, 401))[0].numpy()
    cleanup = Cleanup(mask_threshold=threshold, **options)
    ours = resize_logits(np.stack([cleanup.clean_logits(each) for each in logits[0]]), (401, 300))
    np.testing.assert_allclose(ours, official - threshold, atol=1e-4)
    np.testing.assert_array_equal(ours > 0, official > threshold)
    assert not np.array_equal(ours > 0, resize_logits(logits[0], (401, 300)) > threshold)


@pytest.mark.parametrize(("seed", "area"), [(0, 1), (1, 5), (2, 40), (0, 1000), (1, 1e9)])
def test_small_regions_equal_the_official_function(seed, area):
    pytest.importorskip("cv2")
    amg = pytest.importorskip("sam2.utils.amg")
    mask = blobs(seed) > 0
    expected, _ = amg.remove_small_regions(mask, area, "holes")
    expected, _ = amg.remove_small_regions(expected, area, "islands")
    np.testing.assert_array_equal(remove_small_regions(mask, area), expected)


def test_the_parts_under_the_clicks_stay():
    mask = np.zeros((20, 30), np.bool_)
    mask[2:6, 2:6] = mask[10:14, 2:6] = mask[10:14, 20:30] = True
    alone = keep_clicked(mask, [[3.9, 2.0]])
    assert alone.sum() == 16
    assert alone[2:6, 2:6].all()
    assert keep_clicked(mask, [[3, 3], [30, 12]]).sum() == 16 + 40  # 30 is the right edge of the image
    assert keep_clicked(mask, [[3, 3], [15, 3]]).sum() == 16  # one click misses
    for missed in ([], [[15, 3]], np.zeros((0, 2))):
        assert keep_clicked(mask, missed) is mask
    assert keep_clicked(alone, [[3, 3]]) is alone


def test_nothing_outside_the_box_stays():
    mask = np.ones((10, 12), np.bool_)
    assert np.argwhere(clip_to_box(mask, [2.4, 3.6, 7.6, 9])).tolist() == [
        [row, column] for row in range(4, 9) for column in range(2, 8)
    ]
    assert clip_to_box(mask, [0, 0, 12, 10]).all()
    assert clip_to_box(mask, [0.1, 0.1, 0.4, 0.4]).sum() == 0  # between the centres of pixels


def test_a_smooth_outline_keeps_straight_edges_and_loses_details():
    mask = np.zeros((200, 300), np.bool_)
    mask[50:150, 60:240] = True
    rough = mask.copy()
    rough[49:50, 60:240:4] = True  # teeth
    rough[100, 100] = False
    smoothed = smooth_outline(rough, 4)
    np.testing.assert_array_equal(smoothed[80:120], mask[80:120])
    np.testing.assert_array_equal(smoothed[:, 100:200], mask[:, 100:200])
    assert not smoothed[50, 60]  # a corner
    assert smoothed[53, 63]
    assert not (smoothed & ~mask).any()
    whole = np.ones((9, 9), np.bool_)
    assert smooth_outline(whole, 3).all()  # the edge of the image is no outline
    assert smooth_outline(~whole, 3) is not None
    assert not smooth_outline(~whole, 3).any()


def test_the_steps_run_in_order():
    """Clipping may cut a part in two; then the one under the click stays."""
    mask = np.zeros((40, 40), np.bool_)
    mask[5:10, 5:35] = mask[5:35, 5:10] = mask[5:35, 30:35] = True  # an arch
    cleaned = Cleanup(clip_to_box=True, keep_clicked=True).clean_mask(mask, [[7, 30]], [0, 15, 40, 40])
    assert np.argwhere(cleaned).min(axis=0).tolist() == [15, 5]
    assert cleaned.sum() == 20 * 5
    assert Cleanup(clip_to_box=True).clean_mask(mask) is mask


def test_without_options_nothing_changes():
    logits, cleanup = blobs(), Cleanup()
    mask = logits > 0
    assert cleanup.changes_nothing
    assert cleanup.clean_logits(logits) is logits
    assert cleanup.clean_mask(mask, [[3, 3]], [0, 0, 5, 5]) is mask
    assert cleanup.clean_preview(logits, [[3, 3]], [0, 0, 5, 5]) is logits


def test_the_outline_of_a_preview_follows_the_box():
    logits = np.full((64, 64), 12, np.float32)
    clipped = Cleanup(clip_to_box=True).clean_preview(logits, box=[10.25, 8, 40.75, 50])
    row = clipped[30]
    inside = np.flatnonzero(row > 0)
    left = inside[0] - 0.5 + (0 - row[inside[0] - 1]) / (row[inside[0]] - row[inside[0] - 1])
    assert left == pytest.approx(10.25, abs=0.01)
    assert (clipped > 0).sum() == 31 * 42


def test_a_preview_keeps_the_clicked_part():
    logits = np.full((64, 64), -5, np.float32)
    logits[5:20, 5:20] = logits[40:60, 40:60] = 5
    logits[10, 10] = -1
    shown = Cleanup(max_hole_area=1, keep_clicked=True).clean_preview(logits, [[6, 6]])
    expected = np.zeros((64, 64), np.bool_)
    expected[5:20, 5:20] = True
    np.testing.assert_array_equal(shown > 0, expected)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([1], "must be an object .*, not a list$"),
        ({"fill": 1}, "there is no parameter 'fill'"),
        ({"smooth": 101}, "within 0..100"),
        ({"mask_threshold": float("nan")}, "a number"),
        ({"max_hole_area": 10**400}, "max_hole_area must be a number of at least 0, not 1000"),
        ({"keep_clicked": 1}, "true or false"),
    ],
)
def test_bad_options_are_refused(members, text):
    with pytest.raises(InputError, match=text):
        Cleanup.from_json(members)
