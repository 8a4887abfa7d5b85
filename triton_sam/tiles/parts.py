"""Selects the parts of a large image: one that is sent for a prompt, or overlapping blocks whose embeddings are stored.

micro-sam cuts images in the same blocks: `tile_shape` is the size of a block, and `halo` the margin around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigurationError
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
    """Return the length of the part for prompts: (N,2) points and corners of boxes, in pixels of the whole image."""
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


def check_tiles(tile: int, overlap: int, dashes: str = "") -> None:
    if tile < 64:
        raise ConfigurationError(f"{dashes}tile must be at least 64 pixels, not {tile}")
    if not 0 <= overlap <= tile // 2:
        raise ConfigurationError(
            f"{dashes}overlap must be 0 to {tile // 2} pixels, half a tile of {tile}, not {overlap}"
        )


@dataclass(frozen=True)
class Blocks:
    """Blocks of one size that cover an image, numbered row by row from 0. The last blocks may be smaller.

    Args:
        size: width and height of the image in pixels.
        halo: pixels added on the left and right, and above and below; clipped to the image.
    """

    size: Size
    block: Size
    halo: Size

    @classmethod
    def of_tiles(cls, size: Size, tile: int, overlap: int) -> Blocks:
        """Return blocks whose sides have ``tile`` pixels with the halo, and whose neighbours overlap."""
        check_tiles(tile, overlap)
        halo = overlap // 2
        return cls(size, (tile - 2 * halo,) * 2, (halo,) * 2)

    @property
    def columns(self) -> int:
        return -(-self.size[0] // self.block[0])

    def __len__(self) -> int:
        return self.columns * -(-self.size[1] // self.block[1])

    def at(self, x: float, y: float) -> int:
        """Return the number of the block that holds a point of the image."""
        column = min(max(0, int(x)), self.size[0] - 1) // self.block[0]
        row = min(max(0, int(y)), self.size[1] - 1) // self.block[1]
        return row * self.columns + column

    def region(self, number: int) -> Region:
        """Return a block with its halo, as x1, y1, x2, y2."""
        row, column = divmod(number, self.columns)
        left, top = column * self.block[0], row * self.block[1]
        (width, height), (across, down) = self.size, self.halo
        return (
            max(0, left - across),
            max(0, top - down),
            min(width, left + self.block[0] + across),
            min(height, top + self.block[1] + down),
        )
