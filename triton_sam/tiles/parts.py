"""Selects the part of a large image that is sent for a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..families.base import Size
from ..masks.rle import BoolArray
from .pyramid import Region

SIDE = 1024
"""Pixels of the longest side of a part, the input size of the encoders."""
ROOM = 1.5
"""Minimum length of a part, as a multiple of the box around the prompts."""
STEPS = 4
"""Parts begin at multiples of their length / STEPS, so that nearby clicks share a part."""


def length_for(around: np.ndarray[Any, Any], least: float) -> int:
    """Return the length of the part for prompts.

    Args:
        around: (N,2) points of the prompts and corners of their box, in pixels of the whole image.
    """
    return max(int(np.ceil(least)), int(np.ceil(ROOM * np.ptp(around, axis=0).max())))


def part_around(around: np.ndarray[Any, Any], length: int, size: Size) -> Region:
    """Return a square around points (N,2), moved into the image. It may still exceed the image."""
    step = max(1, length // STEPS)
    starts = []
    for low, high, whole in zip(around.min(axis=0), around.max(axis=0), size, strict=True):
        start = round(((low + high - length) / 2) / step) * step
        starts.append(int(max(0, min(start, whole - length))))
    return starts[0], starts[1], starts[0] + length, starts[1] + length


def is_cut(mask: BoolArray, region: Region, size: Sequence[int]) -> bool:
    """Return whether a mask reaches a border of its region that is not a border of the image."""
    x1, y1, x2, y2 = region
    return bool(
        (x1 > 0 and mask[:, 0].any())
        or (y1 > 0 and mask[0].any())
        or (x2 < size[0] and mask[:, -1].any())
        or (y2 < size[1] and mask[-1].any())
    )
