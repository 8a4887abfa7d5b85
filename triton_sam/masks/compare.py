"""Compares masks: the overlap of two masks, and the best candidate for each object."""

from __future__ import annotations

from collections.abc import Iterable
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
