"""Masks of many objects in one label array."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...masks import mask_to_box
from ...masks.rle import BoolArray
from .prompts import Key
from .sources import Plane

HIGHEST = np.iinfo(np.uint16).max


@dataclass(frozen=True, eq=False)
class Patch:
    """The part of a plane that contains an object."""

    mask: BoolArray
    row: int
    column: int

    @property
    def place(self) -> tuple[slice, slice]:
        height, width = self.mask.shape
        return slice(self.row, self.row + height), slice(self.column, self.column + width)


def patch_of(mask: BoolArray) -> Patch | None:
    """Return the foreground of a plane's mask, bool (H,W); None if the mask is empty."""
    box = mask_to_box(mask)
    if box is None:
        return None
    x1, y1, x2, y2 = box
    return Patch(mask[y1:y2, x1:x2].copy(), y1, x1)


class Board:
    """Writes the masks of objects into a label array, without changing labels that a person painted.

    Where objects overlap, the last changed object is on top; removing it shows the one below.
    """

    def __init__(self, labels: Any) -> None:
        self.labels = labels
        self._patches: dict[Key, Patch] = {}

    def keys(self) -> list[Key]:
        return list(self._patches)

    def put(self, plane: Plane, number: int, patch: Patch | None) -> None:
        """Show an object's mask instead of its earlier one. None removes the mask."""
        target = self.labels[plane]
        old = self._patches.pop((plane, number), None)
        if old is not None:
            part = target[old.place]
            part[old.mask & (part == number)] = 0
            self._show_below(plane, old)
        if patch is not None:
            target[patch.place][patch.mask] = number
            self._patches[plane, number] = patch

    def add(self, plane: Plane, patches: Iterable[Patch]) -> int:
        """Show objects with numbers that are free in all planes, and return how many."""
        first = self.free_number()
        count = 0
        for count, patch in enumerate(patches, 1):
            self.put(plane, min(first + count - 1, HIGHEST), patch)
        return count

    def free_number(self) -> int:
        """Return the first number above those of all objects and all painted labels."""
        shown = max((number for _, number in self._patches), default=0)
        return max(shown, int(self.labels.max(initial=0))) + 1

    def _show_below(self, plane: Plane, gone: Patch) -> None:
        target = self.labels[plane]
        freed = np.zeros(target.shape, bool)
        freed[gone.place] = gone.mask
        for (where, number), other in self._patches.items():
            if where == plane:
                part = target[other.place]
                part[other.mask & freed[other.place] & (part == 0)] = number
