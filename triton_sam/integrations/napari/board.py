"""Masks of many objects in one array of labels."""

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
    """The part of a plane that an object covers."""

    mask: BoolArray
    row: int
    column: int

    @property
    def place(self) -> tuple[slice, slice]:
        """Rows and columns in the plane."""
        height, width = self.mask.shape
        return slice(self.row, self.row + height), slice(self.column, self.column + width)


def patch_of(mask: BoolArray) -> Patch | None:
    """Return the foreground of a mask of a whole plane, bool (H,W); None if there is none."""
    box = mask_to_box(mask)
    if box is None:
        return None
    x1, y1, x2, y2 = box
    return Patch(mask[y1:y2, x1:x2].copy(), y1, x1)


class Board:
    """Writes the masks of objects into an array of labels, and leaves the labels that a person painted alone.

    Where objects overlap, the one that changed last is on top; if it goes, the one below appears again.
    """

    def __init__(self, labels: Any) -> None:
        self.labels = labels
        self._patches: dict[Key, Patch] = {}

    def keys(self) -> list[Key]:
        """Return planes and numbers of all objects that are shown."""
        return list(self._patches)

    def put(self, plane: Plane, number: int, patch: Patch | None) -> None:
        """Show an object, in place of its earlier mask. None removes it."""
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
        """Show objects under numbers that are free in all planes, and return how many."""
        first = self.free_number()
        count = 0
        for count, patch in enumerate(patches, 1):
            self.put(plane, min(first + count - 1, HIGHEST), patch)
        return count

    def free_number(self) -> int:
        """Return the first number above those of all objects, and above all labels that a person painted."""
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
