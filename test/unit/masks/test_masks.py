"""Masks against torch (resize), pycocotools (RLE) and plain counting."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from triton_sam.errors import InputError
from triton_sam.families import get_family
from triton_sam.masks import Segment, best_of
from triton_sam.masks.boxes import mask_to_box
from triton_sam.masks.drawing import PALETTE
from triton_sam.masks.label_map import mask_to_png
from triton_sam.masks.polygons import mask_to_polygons
from triton_sam.masks.resize import full_size_logits, resize_logits
from triton_sam.masks.rle import mask_to_rle, rle_to_box, rle_to_mask

Mask = npt.NDArray[np.bool_]

SHAPES = [
    ((256, 256), (1800, 1200)),
    ((256, 256), (200, 900)),
    ((256, 256), (900, 200)),
    ((256, 256), (100, 77)),
    ((256, 256), (256, 256)),
    ((256, 256), (256, 300)),
    ((256, 256), (1, 1)),
    ((1, 1), (40, 30)),
    ((1, 2000), (333, 5)),
    ((2000, 1), (5, 333)),
    ((3, 5), (4001, 7)),
    ((288, 288), (289, 287)),
]


def square(height: int = 60, width: int = 80) -> Mask:
    mask = np.zeros((height, width), np.bool_)
    mask[10:30, 20:60] = True
    return mask


def ring() -> Mask:
    mask = square()
    mask[15:25, 30:50] = False
    return mask


def edge_masks() -> list[Mask]:
    rng = np.random.default_rng(1)
    masks = [
        rng.random((height, width)) < density
        for height, width, density in zip(rng.integers(1, 90, 60), rng.integers(1, 90, 60), rng.random(60), strict=True)
    ]
    masks += [np.zeros((5, 7), np.bool_), np.ones((5, 7), np.bool_), np.ones((1, 1), np.bool_)]
    masks += [np.eye(9, dtype=np.bool_), square(), ring(), np.zeros((3000, 2000), np.bool_)]
    long = np.zeros((3000, 2000), np.bool_)
    long[-1, -1] = long[1500, 3] = long[7, 4] = True
    return [*masks, long, ~long]


@pytest.mark.export
@pytest.mark.parametrize(("shape", "size"), SHAPES)
def test_resize_equals_torch(shape: tuple[int, int], size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(0).normal(0, 10, (2, 1, *shape)).astype(np.float32)
    wanted = torch.nn.functional.interpolate(
        torch.from_numpy(logits), (size[1], size[0]), mode="bilinear", align_corners=False
    ).numpy()
    result = resize_logits(logits, size)
    assert result.dtype == np.float32
    assert result.shape == wanted.shape
    assert np.abs(result - wanted).max() < 1e-4


RESIZES = [
    *[((8, 8), (20, 33)), ((40, 9), (7, 17)), ((9, 40), (40, 9)), ((1, 5), (3, 50)), ((5, 1), (50, 3))],
    *[((6, 6), (6, 6)), ((6, 5), (5, 9)), ((5, 6), (9, 6)), ((40, 30), (30, 16)), ((2, 2), (1, 1))],
]


def plain_resize(logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bilinear, pixel by pixel: the definition in resize_logits()."""
    height, width = logits.shape

    def taps(place: int, n_in: int, n_out: int) -> tuple[int, int, float]:
        where = max((place + 0.5) * n_in / n_out - 0.5, 0)
        lower = min(int(where), n_in - 1)
        return lower, min(lower + 1, n_in - 1), where - lower

    result = np.empty((size[1], size[0]))
    for y, x in np.ndindex(result.shape):
        top, bottom, down = taps(y, height, size[1])
        left, right, along = taps(x, width, size[0])
        upper = logits[top, left] * (1 - along) + logits[top, right] * along
        lower = logits[bottom, left] * (1 - along) + logits[bottom, right] * along
        result[y, x] = upper * (1 - down) + lower * down
    return result


@pytest.mark.parametrize(("shape", "size"), RESIZES)
def test_resize_equals_its_definition(shape: tuple[int, int], size: tuple[int, int]) -> None:
    logits = np.random.default_rng(0).normal(0, 10, (2, *shape))
    result = resize_logits(logits, size)
    assert result.dtype == np.float32
    for got, given in zip(result, logits, strict=True):
        np.testing.assert_allclose(got, plain_resize(given, size), atol=2e-4)


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (7, 7)])
def test_full_size_logits_leave_the_padding_out(size: tuple[int, int]) -> None:
    logits = np.random.default_rng(0).normal(0, 1, (256, 256)).astype(np.float32)
    np.testing.assert_array_equal(full_size_logits(logits, size, get_family("sam2")), resize_logits(logits, size))
    width, height = get_family("sam1").resized(size)
    assert max(width, height) == 1024
    wanted = resize_logits(resize_logits(logits, (1024, 1024))[:height, :width], size)
    np.testing.assert_array_equal(full_size_logits(logits, size, get_family("sam1")), wanted)


def test_a_segment_stands_for_the_first_unless_it_says_otherwise() -> None:
    segment = Segment(square(), 0.5, None)
    assert (segment.object_index, segment.candidate) == (0, 0)
    assert isinstance(segment.area, int)
    image = Image.new("RGB", (80, 60), (40, 40, 40))
    assert segment.overlay(image) == segment.overlay(image, PALETTE[0], 0.5, outline=True)
    assert segment.overlay(image) != segment.overlay(image, outline=False)
    assert segment.overlay(image, (1, 2, 3)) != segment.overlay(image)
    assert segment.overlay(image, alpha=0.9) != segment.overlay(image)
    later = Segment(square(), 0.5, None, object_index=len(PALETTE) + 2)
    assert later.overlay(image) == segment.overlay(image, PALETTE[2])
    assert segment.to_rle() == mask_to_rle(square(), compressed=True)
    assert isinstance(segment.to_rle()["counts"], str)


def test_a_mask_of_numbers_is_everything_but_zero() -> None:
    mask = np.array([[0, -3, 0.5], [0, 0, 0]])
    assert mask_to_box(mask) == (1, 0, 3, 1)
    assert np.asarray(Image.open(io.BytesIO(mask_to_png(mask)))).tolist() == [[0, 255, 255], [0, 0, 0]]


@pytest.mark.parametrize(("shape", "size"), [((3,), (2, 2)), ((0, 3), (2, 2)), ((3, 3), (0, 2)), ((3, 3), (2, -1))])
def test_resize_refuses(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    with pytest.raises(InputError):
        resize_logits(np.zeros(shape), size)


def test_rle_equals_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.mask")
    for mask in edge_masks():
        wanted = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
        rle = mask_to_rle(mask)
        assert rle == {"size": list(mask.shape), "counts": wanted["counts"].decode()}
        assert (coco.decode(rle) == mask).all()
        plain = mask_to_rle(mask, compressed=False)
        assert coco.frPyObjects(plain, *mask.shape)["counts"] == wanted["counts"]
        for form in (rle, plain, {**rle, "counts": rle["counts"].encode()}):
            decoded = rle_to_mask(form)
            assert decoded.dtype == np.bool_
            assert (decoded == mask).all()


@pytest.mark.parametrize(
    "rle",
    [
        {"size": [2, 2], "counts": [3]},
        {"size": [2, 2], "counts": [5, -1]},
        {"size": [2, 2], "counts": "zzz"},
        {"size": [2, 2], "counts": "o" * 30},
        {"size": [2, 2], "counts": "é"},
        {"size": [2], "counts": "4"},
        {"size": [2, 2], "counts": None},
        {"size": [2, 2], "counts": [2**62] * 4 + [4]},
        {"size": [2, 2], "counts": ("P" * 11 + "8") * 3 + "0" * 61 + "T" + "P" * 10 + "H"},
        {"size": [10**7, 10**7], "counts": [10**14]},
        {"size": [0, 2**70], "counts": []},
        {"counts": "4"},
    ],
)
def test_damaged_rle_is_refused(rle: dict[str, object]) -> None:
    with pytest.raises(InputError, match="RLE"):
        rle_to_mask(rle)


@pytest.mark.parametrize("turn_into", [mask_to_rle, mask_to_box, mask_to_png, mask_to_polygons])
@pytest.mark.parametrize("shape", [(6,), (1, 5, 6)])
def test_what_is_no_mask_is_refused(turn_into: Callable[[Mask], object], shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"a mask is an \(H,W\) array, not \("):
        turn_into(np.ones(shape, np.bool_))


def test_box() -> None:
    assert mask_to_box(square()) == (20, 10, 60, 30)
    assert mask_to_box(np.zeros((4, 4))) is None
    assert mask_to_box(np.ones((4, 6))) == (0, 0, 6, 4)
    assert all(type(value) is int for value in mask_to_box(square()) or ())


def test_png() -> None:
    image = Image.open(io.BytesIO(mask_to_png(square())))
    assert (image.format, image.mode) == ("PNG", "L")
    pixels = np.asarray(image)
    assert set(np.unique(pixels)) == {0, 255}
    assert ((pixels == 255) == square()).all()


def test_segment(tmp_path: Path) -> None:
    segment = Segment(square(), 0.9, np.zeros((256, 256), np.float32), object_index=1, candidate=2)
    assert segment.area == 800
    assert segment.box == (20, 10, 60, 30)
    content = segment.to_png(tmp_path / "mask.png")
    assert content == (tmp_path / "mask.png").read_bytes() == mask_to_png(square())
    assert segment.to_rle() == mask_to_rle(square())
    assert segment.to_rle(compressed=False)["counts"][0] == 20 * 60 + 10
    if "contourpy" in sys.modules or pytest.importorskip("contourpy"):
        assert segment.to_polygons() == mask_to_polygons(square())
    drawn = np.asarray(segment.overlay(Image.new("RGB", (80, 60)), outline=False))
    assert drawn[20, 40].tolist() == pytest.approx([value / 2 for value in PALETTE[1]], abs=1)
    empty = Segment(np.zeros((4, 4), np.bool_), 0.0, np.zeros((2, 2), np.float32))
    assert (empty.area, empty.box) == (0, None)


def test_the_best_candidate_of_each_object_in_the_order_of_objects() -> None:
    scores = {(1, 0): 0.5, (1, 1): 0.7, (0, 0): 0.9, (0, 1): 0.9, (0, 2): 0.1}
    segments = [Segment(square(), score, None, *place) for place, score in scores.items()]
    assert [(segment.object_index, segment.candidate) for segment in best_of(segments)] == [(0, 0), (1, 1)]
    assert best_of([]) == []


def test_the_box_of_rle_equals_that_of_its_mask() -> None:
    rng = np.random.default_rng(0)
    for density in (0, 0.005, 0.05, 0.5, 1):
        for height, width in ((1, 7), (7, 1), (9, 13), (40, 3)):
            for _ in range(20):
                mask = rng.random((height, width)) < density
                for compressed in (True, False):
                    assert rle_to_box(mask_to_rle(mask, compressed)) == mask_to_box(mask)
    assert rle_to_box({"size": [100_000, 100_000], "counts": [100_000, 100_001, 9_999_799_999]}) == (1, 0, 3, 100_000)
    with pytest.raises(InputError, match="do not add up"):
        rle_to_box({"size": [2, 2], "counts": [1, 2]})
