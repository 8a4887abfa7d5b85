"""Overlays: colours, outlines, prompts, and the image below them."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from triton_sam.errors import InputError
from triton_sam.inputs.images import open_image
from triton_sam.masks import Segment
from triton_sam.masks.drawing import PALETTE, overlay


def square(width: int = 80) -> npt.NDArray[np.bool_]:
    mask = np.zeros((60, width), np.bool_)
    mask[10:30, 20:60] = True
    return mask


def test_overlay_fills_and_outlines() -> None:
    image = Image.new("RGB", (80, 60), (100, 100, 100))
    drawn = np.asarray(overlay(image, [square()], colors=[(255, 0, 0)], alpha=0.5)).astype(int)
    assert image.getpixel((40, 20)) == (100, 100, 100)  # a copy was drawn on
    assert drawn[20, 40].tolist() == pytest.approx([178, 50, 50], abs=1)
    assert drawn[10, 40].tolist() == pytest.approx([255, 0, 0], abs=40)
    assert drawn[9, 40].min() > 150  # white around it
    assert drawn[2, 2].tolist() == [100, 100, 100]
    plain = np.asarray(overlay(image, [square()], colors=[(255, 0, 0)], alpha=1.0, outline=False))
    assert ((plain == (255, 0, 0)).all(axis=2) == square()).all()


def test_overlay_marks_points_and_boxes() -> None:
    image = Image.new("RGB", (400, 300), (90, 90, 90))
    points, labels = [[100, 100], [300, 200], [200, 250]], [1, 0, -2]
    drawn = np.asarray(overlay(image, [], points=points, labels=labels, boxes=[20, 30, 380, 280])).astype(int)
    red, green, _ = drawn[102, 102]
    assert green > red + 50
    red, green, _ = drawn[202, 302]
    assert red > green + 50
    assert drawn[250, 200].tolist() == [90, 90, 90]
    assert tuple(drawn[30, 200]) == PALETTE[0]
    overlay(image, [], points=[[[-50, 5]], [[500, 5]]], labels=[[1], [0]], boxes=[[50, 50, 20, 20]])


def test_overlay_refuses() -> None:
    image = Image.new("RGB", (80, 60))
    for options in (
        {"masks": [square(81)]},
        {"masks": [], "alpha": 2},
        {"masks": [], "points": [[1, 2, 3]]},
        {"masks": [], "points": [[1, 2]], "labels": [1, 1]},
        {"masks": [], "boxes": "box"},
        {"masks": [], "points": [[np.nan, 1]]},
        {"masks": [], "points": [[{}, 1]]},
        {"masks": [], "points": [[1, 2]], "labels": [[1], [0, 1]]},
        {"masks": [], "boxes": [0, 0, np.inf, 1]},
        {"image": np.zeros((60, 80, 3), np.float32), "masks": []},
    ):
        with pytest.raises(InputError):
            overlay(**{"image": image, **options})  # type: ignore[arg-type]


def test_overlay_leaves_out_what_is_far_outside() -> None:
    image = Image.new("RGB", (80, 60), (90, 90, 90))
    assert overlay(image, [], points=[[1e12, 1], [-1e300, 5]]) == image
    drawn = np.asarray(overlay(image, [], boxes=[20, -1e12, 1e12, 1e12]))
    assert (drawn[:, 20] == PALETTE[0]).all()
    assert (drawn[:, 30:] == 90).all()


def test_overlay_lies_on_the_image_that_the_client_segmented() -> None:
    """Not on the stored one, which may lie on its side, or have 16 bits."""
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(np.linspace(1000, 4000, 60 * 80).astype(np.uint16).reshape(60, 80)).save(buffer, "PNG", exif=exif)
    stored = Image.open(buffer)
    segmented = np.asarray(open_image(stored))
    mask = np.zeros(segmented.shape[:2], np.bool_)
    mask[5:15, 5:25] = True
    drawn = np.asarray(Segment(mask, 1.0, None).overlay(stored, (255, 0, 0), 1.0, outline=False))
    assert (drawn == np.where(mask[:, :, None], (255, 0, 0), segmented)).all()


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_overlay_takes_any_image(mode: str) -> None:
    assert overlay(Image.new(mode, (80, 60)), [square()]).mode == "RGB"
    assert overlay(np.zeros((60, 80, 3), np.uint8), [np.zeros((60, 80))]).size == (80, 60)
