"""Label maps and overlays of many objects, and the counterparts of masks."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from triton_sam.errors import InputError
from triton_sam.masks.boxes import share_matched
from triton_sam.masks.drawing import PALETTE, overlay_objects
from triton_sam.masks.label_map import label_map_of, label_map_png


def rectangle(x1: int, y1: int, x2: int, y2: int, size: tuple[int, int] = (60, 40)) -> np.ndarray:
    mask = np.zeros(size[::-1], bool)
    mask[y1:y2, x1:x2] = True
    return mask


def test_the_smallest_object_gets_the_pixel():
    large, small = rectangle(0, 0, 40, 40), rectangle(10, 10, 20, 20)
    for masks, inner, outer in (([large, small], 2, 1), ([small, large], 1, 2)):
        labels = label_map_of(masks)
        assert (labels[15, 15], labels[5, 5], labels[5, 50]) == (inner, outer, 0)


@pytest.mark.parametrize("masks", [[], [np.ones((2, 2), bool), np.ones((2, 3), bool)]])
def test_masks_have_one_size(masks):
    with pytest.raises(InputError, match=r"masks of one size, not (no mask|2 x 2, 3 x 2)$"):
        label_map_of(masks)


@pytest.mark.parametrize(("count", "modes"), [(255, {"P"}), (256, {"I;16", "I"})])  # Pillow 10 opens 16 bits as "I"
def test_files_hold_the_numbers_of_the_objects(count, modes):
    labels = np.arange(count + 1, dtype=np.uint16)[None].repeat(3, axis=0)
    opened = Image.open(io.BytesIO(label_map_png(labels)))
    assert opened.mode in modes
    assert np.array_equal(np.asarray(opened), labels)


def test_neighbours_differ_in_colour():
    stripes = [rectangle(x, 0, x + 1, 40) for x in range(60)]
    drawn = np.asarray(overlay_objects(Image.new("RGB", (60, 40)), stripes, alpha=1.0, outline=False))
    row = [tuple(pixel) for pixel in drawn[20]]
    assert all(one != other for one, other in itertools.pairwise(row))
    assert set(row) == set(PALETTE)


def test_an_overlay_draws_the_part_on_the_whole_and_leaves_the_rest():
    image = Image.new("RGB", (600, 400), (90, 90, 90))
    masks = [rectangle(100, 100, 150, 150, image.size), rectangle(50, 50, 400, 350, image.size)]
    drawn = overlay_objects(image, masks)
    assert drawn.size == image.size
    part, whole, rest = (drawn.getpixel(place) for place in ((125, 125), (300, 200), (550, 20)))
    assert rest == (90, 90, 90)
    assert len({part, whole, rest}) == 3
    assert overlay_objects(image, []).tobytes() == image.tobytes()


def test_an_overlay_refuses_masks_of_another_size():
    with pytest.raises(InputError, match="the masks have shape"):
        overlay_objects(Image.new("RGB", (60, 41)), [rectangle(0, 0, 5, 5)])


def test_the_share_of_masks_with_a_counterpart():
    one, almost, other = rectangle(0, 0, 20, 20), rectangle(0, 0, 20, 19), rectangle(30, 0, 50, 20)
    assert share_matched([one, other], [almost], 0.95) == 0.5
    assert share_matched([one], [almost], 0.951) == 0
    assert share_matched([almost], [one, other], 0.95) == 1
    assert share_matched([one], [], 0.5) == 0
    assert share_matched([], [one], 0.5) == 1
    empty = np.zeros_like(one)
    assert share_matched([empty], [one, empty], 0.95) == 1
