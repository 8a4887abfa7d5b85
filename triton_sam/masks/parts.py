"""Connected parts of a mask, found on its runs instead of its pixels, so that large masks are fast.

A run is a maximal row of foreground pixels. Two runs of neighbouring rows touch if their columns overlap or meet at a
corner (8-connectivity, as in cv2.connectedComponentsWithStats and in the kernel of sam2.utils.misc). Runs that touch
are one part; the parts are found by union-find over all pairs at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .rle import BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class Parts:
    """The K connected parts of a mask with R runs.

    Args:
        shape: height and width of the mask.
        starts: int64 (R,), the first pixel of each run, counted row by row.
        ends: int64 (R,), one past the last pixel of each run.
        labels: int64 (R,), the part 0..K-1 of each run. Parts are numbered in the order of their first pixels.
        areas: int64 (K,), pixels of each part.
    """

    shape: tuple[int, int]
    starts: IntArray
    ends: IntArray
    labels: IntArray
    areas: IntArray

    def __len__(self) -> int:
        return len(self.areas)

    def at(self, row: int, column: int) -> int | None:
        """Return the part at a pixel; None for background."""
        pixel = row * self.shape[1] + column
        run = int(np.searchsorted(self.starts, pixel, "right")) - 1
        return int(self.labels[run]) if run >= 0 and pixel < self.ends[run] else None

    def mask(self, kept: BoolArray) -> BoolArray:
        """Return the mask, bool (H,W), of the parts selected by ``kept``, bool (K,)."""
        chosen = kept[self.labels]
        starts, ends = self.starts[chosen], self.ends[chosen]
        height, width = self.shape
        edges = np.empty(2 * len(starts) + 2, np.int64)
        edges[0], edges[-1], edges[1:-1:2], edges[2:-1:2] = 0, height * width, starts, ends
        return np.repeat(np.arange(len(edges) - 1) % 2 == 1, np.diff(edges)).reshape(self.shape)


def find_parts(mask: BoolArray) -> Parts:
    """Find the connected parts of a mask, bool (H,W)."""
    rows, first, last = _runs(mask)
    labels = _joined(len(rows), *_touching(rows, first, last, mask.shape[1]))
    areas = np.bincount(labels, weights=last - first).astype(np.int64)  # exact below 2**53
    offsets = rows * mask.shape[1]
    return Parts((mask.shape[0], mask.shape[1]), offsets + first, offsets + last, labels, areas)


def innermost_points(parts: Parts, limit: int) -> list[list[float]]:
    """Return a point well inside of each part, x, y in pixels, for at most ``limit`` of the largest parts.

    The point is the centre of the middle one of the part's longest rows (at least 0.9 times the longest).
    """
    lengths, points = parts.ends - parts.starts, []
    for part in np.argsort(-parts.areas, kind="stable")[:limit]:
        runs = np.flatnonzero(parts.labels == part)
        long = runs[lengths[runs] >= 0.9 * lengths[runs].max()]
        chosen = long[len(long) // 2]
        row, column = divmod(int(parts.starts[chosen]), parts.shape[1])
        points.append([column + float(lengths[chosen]) / 2, row + 0.5])
    return points


def _runs(mask: BoolArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the row of each run, its first column, and one past its last column."""
    height, width = mask.shape
    if mask.size == 0:
        return (np.zeros(0, np.int64),) * 3
    flat = np.ascontiguousarray(mask).reshape(-1)
    changes = flat[1:] != flat[:-1]
    changes[width - 1 :: width] = True  # a run ends with its row
    edges = np.concatenate(([0], np.flatnonzero(changes) + 1, [height * width]))
    starts = edges[:-1][flat[edges[:-1]]]
    ends = edges[1:][flat[edges[:-1]]]
    rows = starts // width
    return rows, starts - rows * width, ends - rows * width


def _touching(rows: IntArray, first: IntArray, last: IntArray, width: int) -> tuple[IntArray, IntArray]:
    """Return all pairs of touching runs as two arrays: a run, and a run in the row above."""
    stride = width + 1  # so that the last end of a row is below the first start of the next
    starts, ends = rows * stride + first, rows * stride + last
    # With 8-connectivity, a run above touches if it ends at our first column or later, and starts at our end or before.
    lowest = np.searchsorted(ends, starts - stride, "left")
    highest = np.searchsorted(starts, ends - stride, "right")
    counts = np.maximum(highest - lowest, 0)
    below = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(len(below)) - np.repeat(np.cumsum(counts) - counts, counts)
    return below, lowest[below] + place


def _joined(count: int, one: IntArray, other: IntArray) -> IntArray:
    """Return the number 0..K-1 of the set of each of ``count`` elements, after joining the given pairs.

    Every round hooks each root onto the smallest root in its pairs, and then points each element to its root.
    """
    root: npt.NDArray[np.int64] = np.arange(count)
    while len(one):
        left, right = root[one], root[other]
        unequal = left != right
        one, other, left, right = one[unequal], other[unequal], left[unequal], right[unequal]
        np.minimum.at(root, np.maximum(left, right), np.minimum(left, right))
        while True:
            above = root[root]
            if np.array_equal(above, root):
                break
            root = above
    return np.unique(root, return_inverse=True)[1].reshape(-1).astype(np.int64)
