"""Compares masks: the overlap of two masks, and the best candidate for each object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .rle import BoolArray

if TYPE_CHECKING:
    from .segment import Segment


def intersection_over_union(one: BoolArray, other: BoolArray) -> float:
    """Return the IoU (Jaccard index) of two masks bool (H,W), 0..1; 1 when both are empty."""
    union = int(np.count_nonzero(one | other))
    return int(np.count_nonzero(one & other)) / union if union else 1.0


def best_of(segments: Iterable[Segment]) -> list[Segment]:
    """Return the candidate with the highest score for each object, ordered by object; of equals the first."""
    best: dict[int, Segment] = {}
    for segment in segments:
        kept = best.get(segment.object_index)
        if kept is None or segment.score > kept.score:
            best[segment.object_index] = segment
    return [best[index] for index in sorted(best)]


def share_matched(masks: Sequence[BoolArray], others: Sequence[BoolArray], least: float) -> float:
    """Return the share of masks that have a counterpart among others: an IoU of at least ``least``.

    Args:
        masks: bool (H,W), all of one size.
        others: masks of the same size; several masks may have the same counterpart.
        least: smallest IoU of a mask and its counterpart, above 0 and up to 1.

    Returns:
        0..1; 1 if there are no masks.
    """
    if not masks:
        return 1.0
    found = [(mask, _window(mask), int(np.count_nonzero(mask))) for mask in others]
    return sum(_has_counterpart(mask, found, least) for mask in masks) / len(masks)


_Window = tuple[slice, slice]


def _has_counterpart(mask: BoolArray, others: Sequence[tuple[BoolArray, _Window, int]], least: float) -> bool:
    area = int(np.count_nonzero(mask))
    window = _window(mask)
    for other, other_window, other_area in others:
        if min(area, other_area) < least * max(area, other_area):  # the IoU is at most the ratio of the areas
            continue
        rows, columns = (
            slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in zip(window, other_window, strict=True)
        )
        if intersection_over_union(mask[rows, columns], other[rows, columns]) >= least:
            return True
    return False


def _window(mask: BoolArray) -> _Window:
    """Return the rows and the columns from the first to the last pixel of a mask."""
    found = (np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0)))
    rows, columns = (slice(int(axis[0]), int(axis[-1]) + 1) if axis.size else slice(0, 0) for axis in found)
    return rows, columns
