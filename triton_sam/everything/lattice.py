"""The adaptive mode: a coarse grid first, and then only points between neighbours that disagree.

Neighbours agree if each mask of one has a counterpart among those of each other, or if none has a mask. A point between
them would most likely find the same masks, and is left out. To leave out points that a mask covers loses the parts and
the neighbours of what was found: with the demo model, half of the masks and more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..families.base import FloatArray, Size
from .parts import FoundMask

_STRIDES = (4, 2, 1)
"""Every fourth point in both directions comes first, then every second one, then all others."""
_SAME = 0.8
"""The IoU from which on two masks count as the same."""
_SAMPLES = 64
"""Masks are compared at about so many pixels along the longer side of the crop."""


class Lattice:
    """The points of a square grid, and the masks that were found under them.

    Args:
        points: (N,2), row by row, x and y in pixels of the crop.
        size: width and height of the crop.
    """

    def __init__(self, points: FloatArray, size: Size) -> None:
        self._side = math.isqrt(len(points))
        self._size = size
        self._step = math.ceil(max(size) / _SAMPLES)
        self._found: dict[int, FloatArray] = {}
        """The masks under a point, sampled, (M,K). A point that is left out has those of a neighbour."""

    def passes(self) -> Iterator[npt.NDArray[np.intp]]:
        """Yield the indices of the points to try, one pass after the other.

        The caller tells the masks of all of them by put() before it asks for the next pass. The last passes try points
        that were left out, and whose neighbours disagree after all.
        """
        left: set[int] = set()
        for stride in _STRIDES:
            row = range(_STRIDES[0] // 2 % stride, self._side, stride)
            here = [y * self._side + x for y, x in itertools.product(row, row) if y * self._side + x not in self._found]
            agreed = {index: masks for index in here if (masks := self._agreed(index, stride)) is not None}
            left |= agreed.keys()
            self._found |= agreed
            yield np.array([index for index in here if index not in agreed], np.intp)
        while again := [index for index in sorted(left) if self._agreed(index, 1) is None]:
            left -= set(again)
            yield np.array(again, np.intp)

    def put(self, index: int, masks: Sequence[FoundMask]) -> None:
        """Tell the masks under a point."""
        self._found[index] = np.array([self._sampled(each) for each in masks], np.float32)

    def _agreed(self, index: int, stride: int) -> FloatArray | None:
        """Return the masks on which the neighbours of a point agree; None if they do not, or are too few.

        Only close neighbours can agree that there is no mask: small objects lie between distant ones.
        """
        rows, columns = (
            [place for place in (middle - stride, middle, middle + stride) if 0 <= place < self._side]
            for middle in divmod(index, self._side)
        )
        around = (y * self._side + x for y, x in itertools.product(rows, columns))
        known = [self._found[each] for each in around if each in self._found]
        if len(known) < 2 or not all(_are_same(known[0], other) for other in known[1:]):
            return None
        return known[0] if stride == 1 or len(known[0]) else None

    def _sampled(self, found: FoundMask) -> FloatArray:
        width, height = self._size
        mask = np.unpackbits(found.bits, count=width * height).reshape(height, width)
        return mask[:: self._step, :: self._step].ravel().astype(np.float32)


def _are_same(first: FloatArray, second: FloatArray) -> bool:
    """Whether each mask (M,K) of one has a counterpart in the other."""
    if first is second or not (len(first) or len(second)):
        return True
    if not (len(first) and len(second)):
        return False
    common = first @ second.T
    whole = first.sum(1)[:, None] + second.sum(1) - common
    same = common >= _SAME * whole
    return bool(same.any(1).all() and same.any(0).all())
