"""Results of a search for everything, made from masks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from triton_sam.everything.parts import FoundMask, last_pixels


def found_mask(
    mask: npt.NDArray[np.bool_],
    point: tuple[float, float] = (0.5, 0.5),
    crop: tuple[int, int, int, int] | None = None,
) -> FoundMask:
    """Return an object whose mask (H,W) is in a crop of an image, by default the whole image."""
    left, top, right, bottom = crop = crop or (0, 0, mask.shape[1], mask.shape[0])
    part = mask[top:bottom, left:right]
    inside = point[0] - left, point[1] - top
    return FoundMask(np.packbits(part), 0.9, 0.97, inside, last_pixels(part), crop, (mask.shape[1], mask.shape[0]))
