"""The prompts of large images. Each is assigned to the tile that shows most around it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..families.base import Size
from .large_sources import LargeItem, TileItem
from .prompts import Corners, Prompt, Prompts
from .sources import ImageItem, Skipped

_NO_FIT = "it does not fit into one tile: give a larger --overlap or --tile, or a --level with fewer pixels"


def prompts_of_tiles(prompts: Prompts, items: Iterable[TileItem]) -> tuple[Prompts, tuple[TileItem, ...]]:
    """Return the prompts of the tiles, and the tiles with prompts.

    Args:
        prompts: the prompts of the large images, in pixels of the largest level.
    """
    grids: dict[str, list[TileItem]] = defaultdict(list)
    for item in items:
        grids[item.image.name].append(item)
    owned: dict[int, list[Prompt]] = defaultdict(list)
    strays = list(prompts.strays)
    for parts in grids.values():
        grid = _Grid(parts)
        kept, skipped = prompts.of(grid.image, grid.image.size or (0, 0))
        strays += skipped
        for prompt in kept:
            tile = grid.best(prompt)
            if tile is None:
                strays.append(Skipped(grid.image.name, prompt.what, _NO_FIT))
            else:
                owned[tile.id].append(grid.moved(prompt, tile))

    def find(item: ImageItem, _: Size) -> tuple[list[Prompt], list[Skipped]]:
        return list(owned.get(item.id, ())), []

    used = tuple(item for parts in grids.values() for item in parts if item.id in owned)
    return Prompts(prompts.categories, find, tuple(strays)), used


class _Grid:
    """The tiles of one image, in rows and columns."""

    def __init__(self, parts: Sequence[TileItem]) -> None:
        self.image: LargeItem = parts[0].image
        width, height = self.image.size or self.image.level
        self._scale = self.image.level[0] / width, self.image.level[1] / height
        self._tiles: Mapping[tuple[int, int], TileItem] = {part.region[:2]: part for part in parts}
        self._lengths = parts[0].size or (0, 0)
        self._starts = [np.unique([part.region[axis] for part in parts]) for axis in (0, 1)]

    def best(self, prompt: Prompt) -> TileItem | None:
        """Return the tile that contains a prompt and shows most around it; None if no tile contains the prompt."""
        x1, y1, x2, y2 = self._box(prompt)
        left, top = self._start(0, x1, x2), self._start(1, y1, y2)
        return None if left is None or top is None else self._tiles[left, top]

    def moved(self, prompt: Prompt, tile: TileItem) -> Prompt:
        """Return a prompt converted to pixels of a tile."""
        (across, down), (left, top, right, bottom) = self._scale, tile.region
        points = tuple(  # rounding may exceed the tile; Prompts.of() clips boxes
            (min(max(0.0, x * across - left), right - left), min(max(0.0, y * down - top), bottom - top), label)
            for x, y, label in prompt.points
        )
        if prompt.box is None:
            return replace(prompt, points=points)
        x1, y1, x2, y2 = prompt.box
        return replace(prompt, box=(x1 * across - left, y1 * down - top, x2 * across - left, y2 * down - top))

    def _box(self, prompt: Prompt) -> Corners:
        """Return the box around a prompt, clipped to the image, in pixels of the level."""
        corners = prompt.box or (
            min(x for x, *_ in prompt.points),
            min(y for _, y, _ in prompt.points),
            max(x for x, *_ in prompt.points),
            max(y for _, y, _ in prompt.points),
        )
        (across, down), (width, height) = self._scale, self.image.level
        x1, y1, x2, y2 = corners
        return max(0, x1 * across), max(0, y1 * down), min(width, x2 * across), min(height, y2 * down)

    def _start(self, axis: int, low: float, high: float) -> int | None:
        starts, length, whole = self._starts[axis], self._lengths[axis], self.image.level[axis]
        before = np.where(starts == 0, np.inf, low - starts)  # a border of the image hides nothing
        after = np.where(starts + length == whole, np.inf, starts + length - high)
        room = np.minimum(before, after)
        room[(low < starts) | (high > starts + length)] = -1
        best = int(np.argmax(room))
        return int(starts[best]) if room[best] >= 0 else None
