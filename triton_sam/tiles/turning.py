"""Large images with an orientation tag: parts are read in upright orientation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..families.base import Size
from ..inputs.header import TURNED
from ..inputs.samples import Values

Read = Callable[[int, int, int, int], Values]
"""Returns the part x1, y1, x2, y2 as (h,w) or (h,w,c)."""


def upright_reader(read: Read, size: Size, orientation: int) -> tuple[Read, Size]:
    """Return a reader of parts of the upright image, and its width and height."""
    if orientation == 1:
        return read, size
    width, height = size
    swaps = orientation in TURNED
    from_right, from_bottom = orientation in (2, 3, 7, 8), orientation in (3, 4, 6, 7)

    def read_upright(x1: int, y1: int, x2: int, y2: int) -> Values:
        if swaps:
            x1, y1, x2, y2 = y1, x1, y2, x2
        if from_right:
            x1, x2 = width - x2, width - x1
        if from_bottom:
            y1, y2 = height - y2, height - y1
        part = read(x1, y1, x2, y2)[:: -1 if from_bottom else 1, :: -1 if from_right else 1]
        return np.swapaxes(part, 0, 1) if swaps else part

    return read_upright, size[::-1] if swaps else size
