"""Cuts an image into overlapping blocks, whose embeddings are stored.

micro-sam cuts images in the same way: `tile_shape` is the size of a block, and `halo` the margin around it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigurationError
from ..families.base import Size
from .pyramid import Region


def check_tiles(tile: int, overlap: int, dashes: str = "") -> None:
    """Check the size of tiles."""
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
        """Number of blocks in a row."""
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
