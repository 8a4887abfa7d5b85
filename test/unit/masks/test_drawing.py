"""Overlays: colours, outlines, prompts, and the image below them. Label maps of many objects."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image
from support.contents import encoded
from support.rectangles import mask

from triton_sam.errors import InputError
from triton_sam.inputs.images import open_image
from triton_sam.masks import Segment
from triton_sam.masks.boxes import share_matched
from triton_sam.masks.drawing import PALETTE, _distinct_colors, overlay, overlay_objects
from triton_sam.masks.label_map import label_map_of, label_map_png

SQUARE = mask((20, 10, 60, 30), size=(60, 80))
GREY = (90, 90, 90)


def test_overlay_fills_and_outlines():
    image = Image.new("RGB", (80, 60), (100, 100, 100))
    drawn = np.asarray(overlay(image, [SQUARE], colors=[(255, 0, 0)], alpha=0.5)).astype(int)
    assert image.getpixel((40, 20)) == (100, 100, 100)  # a copy was drawn on
    assert drawn[20, 40].tolist() == pytest.approx([178, 50, 50], abs=1)
    assert drawn[10, 40].tolist() == pytest.approx([255, 0, 0], abs=40)
    assert drawn[9, 40].min() > 150  # white around it
    assert drawn[2, 2].tolist() == [100, 100, 100]
    plain = np.asarray(overlay(image, [SQUARE], colors=[(255, 0, 0)], alpha=1.0, outline=False))
    assert ((plain == (255, 0, 0)).all(axis=2) == SQUARE).all()


def test_overlay_marks_points_and_boxes():
    image = Image.new("RGB", (400, 300), GREY)
    points, labels = [[100, 100], [300, 200], [200, 250]], [1, 0, -2]
    drawn = np.asarray(overlay(image, [], points=points, labels=labels, boxes=[20, 30, 380, 280])).astype(int)
    red, green, _ = drawn[102, 102]
    assert green > red + 50
    red, green, _ = drawn[202, 302]
    assert red > green + 50
    assert drawn[250, 200].tolist() == [90, 90, 90]
    assert tuple(drawn[30, 200]) == PALETTE[0]
    overlay(image, [], points=[[[-50, 5]], [[500, 5]]], labels=[[1], [0]], boxes=[[50, 50, 20, 20]])
    assert overlay(image, [], points=[[1e12, 1], [-1e300, 5]]) == image  # far outside
    drawn = np.asarray(overlay(image, [], boxes=[20, -1e12, 1e12, 1e12]))
    assert (drawn[:, 20] == PALETTE[0]).all()
    assert (drawn[:, 30:] == 90).all()


def test_colours_may_be_an_array():
    image = Image.new("RGB", (80, 60))
    drawn = overlay(image, [SQUARE], colors=np.array([[255, 0, 0]]), alpha=1)
    assert np.asarray(drawn)[20, 40].tolist() == [255, 0, 0]


def test_overlay_refuses():
    image = Image.new("RGB", (80, 60))
    for options in (
        {"masks": [SQUARE[:, :79]]},
        {"masks": [], "alpha": 2},
        {"masks": [], "points": [[1, 2]], "labels": [1, 1]},
        {"masks": [], "points": [[np.nan, 1]]},
        {"image": np.zeros((60, 80, 3), np.float32), "masks": []},
    ):
        with pytest.raises(InputError):
            overlay(**{"image": image, **options})


def test_overlay_lies_on_the_image_that_the_client_segmented():
    """Not on the stored one, which may lie on its side, or have 16 bits."""
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.linspace(1000, 4000, 60 * 80).astype(np.uint16).reshape(60, 80)
    stored = Image.open(io.BytesIO(encoded(Image.fromarray(pixels), exif=exif)))
    segmented = np.asarray(open_image(stored))
    found = mask((5, 5, 25, 15), size=segmented.shape[:2])
    drawn = np.asarray(Segment(found, 1.0, None).overlay(stored, (255, 0, 0), 1.0, outline=False))
    assert (drawn == np.where(found[:, :, None], (255, 0, 0), segmented)).all()


# Many objects


def rectangle(*corners):
    return mask(corners, size=(40, 60))


def test_masks_have_one_size():
    for masks in ([], [np.ones((2, 2), bool), np.ones((2, 3), bool)]):
        with pytest.raises(InputError, match=r"masks of one size, not (no mask|2 x 2, 3 x 2)$"):
            label_map_of(masks)
    with pytest.raises(InputError, match="the masks have shape"):
        overlay_objects(Image.new("RGB", (60, 41)), [rectangle(0, 0, 5, 5)])


@pytest.mark.parametrize(("count", "modes"), [(255, {"P"}), (256, {"I;16", "I"})])  # Pillow 10 opens 16 bits as "I"
def test_files_hold_the_numbers_of_the_objects(count, modes):
    labels = np.arange(count + 1, dtype=np.uint16)[None].repeat(3, axis=0)
    opened = Image.open(io.BytesIO(label_map_png(labels)))
    assert opened.mode in modes
    assert np.array_equal(np.asarray(opened), labels)
    grey = Image.open(io.BytesIO(label_map_png(labels, palette=False)))
    assert grey.mode in (modes - {"P"} or {"L"})
    assert np.array_equal(np.asarray(grey), labels)


def test_neighbours_differ_in_colour():
    stripes = [rectangle(x, 0, x + 1, 40) for x in range(60)]
    colors = _distinct_colors(label_map_of(stripes), len(stripes))
    assert all(one != other for one, other in itertools.pairwise(colors))
    assert set(colors) == set(PALETTE)


def test_an_overlay_draws_the_part_on_the_whole_and_leaves_the_rest():
    image = Image.new("RGB", (600, 400), GREY)
    corners = (100, 100, 150, 150), (50, 50, 400, 350)
    drawn = overlay_objects(image, [mask(each, size=(400, 600)) for each in corners])
    assert drawn.size == image.size
    part, whole, rest = (drawn.getpixel(place) for place in ((125, 125), (300, 200), (550, 20)))
    assert rest == GREY
    assert len({part, whole, rest}) == 3
    assert overlay_objects(image, []).tobytes() == image.tobytes()


def test_the_share_of_masks_with_a_counterpart():
    one, almost, other = rectangle(0, 0, 20, 20), rectangle(0, 0, 20, 19), rectangle(30, 0, 50, 20)
    assert share_matched([one, other], [almost], 0.95) == 0.5
    assert share_matched([one], [almost], 0.951) == 0
    assert share_matched([almost], [one, other], 0.95) == 1
    assert share_matched([one], [], 0.5) == 0
    assert share_matched([], [one], 0.5) == 1
    empty = np.zeros_like(one)
    assert share_matched([empty], [one, empty], 0.95) == 1
