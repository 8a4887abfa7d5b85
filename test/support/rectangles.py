"""Masks made of rectangles, and masks as results of a search for everything."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from triton_sam.everything.search import FoundMask, last_pixels, packed


def mask(*rectangles: tuple[int, int, int, int], size: tuple[int, int] = (20, 30)) -> np.ndarray:
    """Return a bool (H,W) mask that is True inside the rectangles x1,y1,x2,y2."""
    pixels = np.zeros(size, bool)
    for x1, y1, x2, y2 in rectangles:
        pixels[y1:y2, x1:x2] = True
    return pixels


def found_mask(
    mask: npt.NDArray[np.bool_],
    point: tuple[float, float] = (0.5, 0.5),
    crop: tuple[int, int, int, int] | None = None,
) -> FoundMask:
    """Return an object whose mask (H,W) is in a crop of an image, by default the whole image."""
    left, top, right, bottom = crop = crop or (0, 0, mask.shape[1], mask.shape[0])
    part = mask[top:bottom, left:right]
    inside = point[0] - left, point[1] - top
    box = last_pixels(part)
    return FoundMask(packed(part, box), 0.9, 0.97, inside, box, crop, (mask.shape[1], mask.shape[0]))
