"""Masks against torch (resize), pycocotools (RLE) and Pillow (PNG, box)."""

import io

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from support import rectangles
from support.strategies import anything

from triton_sam.errors import InputError
from triton_sam.families import get_family
from triton_sam.masks import Segment, best_of, resize, rle
from triton_sam.masks.boxes import intersection_over_union, mask_to_box
from triton_sam.masks.cleanup import Cleanup
from triton_sam.masks.drawing import PALETTE
from triton_sam.masks.label_map import mask_to_png
from triton_sam.masks.polygons import mask_to_polygons
from triton_sam.masks.resize import full_size_logits, full_size_masks, resize_logits
from triton_sam.masks.rle import mask_to_rle, rle_to_box, rle_to_mask

SHAPES = [
    ((256, 256), (1800, 1200)),
    ((256, 256), (200, 900)),
    ((256, 256), (900, 200)),
    ((256, 256), (256, 256)),
    ((256, 256), (1, 1)),
    ((1, 1), (40, 30)),
    ((1, 2000), (333, 5)),
    ((2000, 1), (5, 333)),
    ((3, 5), (4001, 7)),
    ((288, 288), (289, 287)),
    ((40, 9), (7, 17)),
    ((6, 5), (5, 9)),
]


SQUARE = rectangles.mask((20, 10, 60, 30), size=(60, 80))


@pytest.mark.export
@pytest.mark.parametrize(("shape", "size"), SHAPES)
def test_resize_equals_torch(shape, size):
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(0).normal(0, 10, (2, 1, *shape)).astype(np.float32)
    wanted = torch.nn.functional.interpolate(
        torch.from_numpy(logits), (size[1], size[0]), mode="bilinear", align_corners=False
    ).numpy()
    result = resize_logits(logits, size)
    assert result.dtype == np.float32
    assert result.shape == wanted.shape
    assert np.abs(result - wanted).max() < 1e-4


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (7, 7)])
def test_full_size_logits_leave_the_padding_out(size):
    logits = np.random.default_rng(0).normal(0, 1, (256, 256)).astype(np.float32)
    np.testing.assert_array_equal(full_size_logits(logits, size, get_family("sam2")), resize_logits(logits, size))
    width, height = get_family("sam1").resized(size)
    assert max(width, height) == 1024
    wanted = resize_logits(resize_logits(logits, (1024, 1024))[:height, :width], size)
    np.testing.assert_array_equal(full_size_logits(logits, size, get_family("sam1")), wanted)


@pytest.mark.parametrize(("shape", "size"), [((3,), (2, 2)), ((0, 3), (2, 2)), ((3, 3), (0, 2)), ((3, 3), (2, -1))])
def test_resize_refuses(shape, size):
    with pytest.raises(InputError):
        resize_logits(np.zeros(shape), size)


# Masks of full size: the sign of the resized logits, to the bit

SQUASHES, PADS = get_family("sam2"), get_family("sam1")
NUMBERS = st.sampled_from([-0.0, 0.0, 2**-30, -(2**-30), 1.0, -1.0, 3.5, -20.0, np.nan, np.inf, 2.0**127, -(2.0**127)])
SIDES = st.integers(1, 40)
THRESHOLDS = st.sampled_from([0.0, 1.0, -1.0, 3.5, 0.1, -2.7, 1e-6, 100.0])


def blobs(noise):
    y, x = np.mgrid[:256, :256]
    smooth = np.minimum(60 - np.hypot(y - 90, x - 140), 0.4 * np.hypot(y - 200, x - 60) - 4)
    return (smooth + np.random.default_rng(0).normal(0, noise, smooth.shape)).astype(np.float32)


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS),
    st.tuples(SIDES, SIDES),
    THRESHOLDS,
)
@pytest.mark.filterwarnings("ignore:invalid value|overflow")
def test_any_logits(logits, size, threshold):
    resized = full_size_logits(logits, size, SQUASHES)
    np.testing.assert_array_equal(*full_size_masks(logits, size, SQUASHES), resized > 0)
    (mask,) = full_size_masks(logits, size, SQUASHES, (threshold,))
    np.testing.assert_array_equal(mask, resized > threshold)


@given(
    hnp.arrays(np.float32, (8, 8), elements=st.floats(-4, 4, width=32)),
    st.tuples(st.integers(8, 90), st.integers(8, 90)),
    THRESHOLDS,
)
def test_pixels_between_two_signs_are_blended_like_rows(logits, size, threshold):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "_FEW", 1 / 1000)  # never fall back
        (mask,) = full_size_masks(logits, size, SQUASHES, (threshold,))
    np.testing.assert_array_equal(mask, full_size_logits(logits, size, SQUASHES) > threshold)


@pytest.mark.parametrize("size", [(1600, 1200), (300, 255), (257, 1999)])
@pytest.mark.parametrize("noise", [0, 1, 30])
def test_masks_of_images(size, noise):
    for family in (SQUASHES, PADS):
        thresholds = (0.0, 1.0, -1.0, 0.1, 1e-5, 90.0, 1e9)
        logits = full_size_logits(blobs(noise), size, family)
        for mask, threshold in zip(full_size_masks(blobs(noise), size, family, thresholds), thresholds, strict=True):
            np.testing.assert_array_equal(mask, logits > threshold)
            assert mask.flags.c_contiguous


# Run lengths, files and boxes


def dots(side):
    """Return a mask whose runs have lengths of few and of many digits."""
    mask = np.zeros((side, side - 1000), np.bool_)
    mask[-1, -1] = mask[side // 2, 3] = mask[7, 4] = True
    return mask


@given(hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=30)), st.sampled_from([128, 0.001]))
@example(np.zeros((3000, 2000), np.bool_), 128)
@example(dots(3000), 128)
@example(~dots(3000), 128)
def test_rle_png_and_box_are_those_of_other_programs_and_give_the_mask_back(mask, noise):
    coco = pytest.importorskip("pycocotools.mask")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rle, "_NOISE", noise)  # masks of many changes and of few go other ways
        packed, plain = mask_to_rle(mask), mask_to_rle(mask, compressed=False)
    wanted = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert packed == {"size": list(mask.shape), "counts": wanted["counts"].decode()}
    assert coco.frPyObjects(plain, *mask.shape)["counts"] == wanted["counts"]
    assert mask_to_box(mask) == Image.fromarray(mask).getbbox()
    for form in (packed, plain, {**packed, "counts": wanted["counts"]}):
        np.testing.assert_array_equal(rle_to_mask(form), mask)
        assert rle_to_box(form) == mask_to_box(mask)
    image = Image.open(io.BytesIO(mask_to_png(mask)))
    assert (image.format, image.mode) == ("PNG", "L")
    np.testing.assert_array_equal(np.asarray(image), mask * np.uint8(255))


def test_the_box_of_rle_needs_no_pixels():
    assert rle_to_box({"size": [100_000, 100_000], "counts": [100_000, 100_001, 9_999_799_999]}) == (1, 0, 3, 100_000)
    assert mask_to_rle(np.zeros((0, 5)), compressed=False) == {"size": [0, 5], "counts": []}
    for counts in ([1, 2], [5, -1]):
        with pytest.raises(InputError, match="do not add up"):
            rle_to_box({"size": [2, 2], "counts": counts})


@pytest.mark.parametrize(
    "damaged",
    [
        {"size": [2, 2], "counts": [3]},
        {"size": [2, 2], "counts": [5, -1]},
        {"size": [2, 2], "counts": "o" * 30},
        {"size": [2, 2], "counts": "é"},
        {"size": [2, 2], "counts": [2**62] * 4 + [4]},
        {"size": [2, 2], "counts": ("P" * 11 + "8") * 3 + "0" * 61 + "T" + "P" * 10 + "H"},
        {"size": [10**7, 10**7], "counts": [10**14]},
        {"size": [0, 2**70], "counts": []},
        {"counts": "4"},
    ],
)
def test_damaged_rle_is_refused(damaged):
    with pytest.raises(InputError, match="RLE"):
        rle_to_mask(damaged)


@given(
    st.fixed_dictionaries(
        {"size": anything | st.tuples(st.integers(1, 30), st.integers(1, 30)).map(list), "counts": anything}
    )
    | anything
)
def test_any_rle_is_a_mask_or_an_input_error(given):
    try:
        mask = rle_to_mask(given)
    except InputError:
        return
    assert mask.dtype == np.bool_


@pytest.mark.parametrize("turn_into", [mask_to_rle, mask_to_box, mask_to_png, mask_to_polygons])
@pytest.mark.parametrize("shape", [(6,), (1, 5, 6)])
def test_what_is_no_mask_is_refused(turn_into, shape):
    with pytest.raises(InputError, match=r"a mask is an \(H,W\) array, not \("):
        turn_into(np.ones(shape, np.bool_))


def test_a_mask_of_numbers_is_everything_but_zero():
    mask = np.array([[0, -3, 0.5], [0, 0, 0]])
    assert mask_to_box(mask) == (1, 0, 3, 1)
    assert all(type(value) is int for value in mask_to_box(mask) or ())
    assert np.asarray(Image.open(io.BytesIO(mask_to_png(mask)))).tolist() == [[0, 255, 255], [0, 0, 0]]
    assert intersection_over_union(mask, mask != 0) == 1
    with pytest.raises(InputError, match="rows and columns"):
        intersection_over_union(mask, mask.T)
    numbers = np.uint8(SQUARE)
    cleanup = Cleanup(keep_clicked=True, min_mask_region_area=3)
    assert (cleanup.clean_mask(numbers, [[40, 20]]) == SQUARE).all()


def test_segment(tmp_path):
    pytest.importorskip("contourpy")
    segment = Segment(SQUARE, 0.9, np.zeros((256, 256), np.float32), object_index=1, candidate=2)
    assert isinstance(segment.area, int)
    assert (segment.area, segment.box) == (800, (20, 10, 60, 30))
    content = segment.to_png(tmp_path / "mask.png")
    assert content == (tmp_path / "mask.png").read_bytes() == mask_to_png(SQUARE)
    assert segment.to_rle() == mask_to_rle(SQUARE, compressed=True)
    assert segment.to_rle(compressed=False)["counts"][0] == 20 * 60 + 10
    assert segment.to_polygons() == mask_to_polygons(SQUARE)
    drawn = np.asarray(segment.overlay(Image.new("RGB", (80, 60)), outline=False))
    assert drawn[20, 40].tolist() == pytest.approx([value / 2 for value in PALETTE[1]], abs=1)


def test_the_best_candidate_of_each_object_in_the_order_of_objects():
    scores = {(1, 0): 0.5, (1, 1): 0.7, (0, 0): 0.9, (0, 1): 0.9, (0, 2): 0.1}
    segments = [Segment(SQUARE, score, None, *place) for place, score in scores.items()]
    assert [(segment.object_index, segment.candidate) for segment in best_of(segments)] == [(0, 0), (1, 1)]
    assert best_of([]) == []
