"""The overlap of masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .boxes import mask_to_box
from .rle import BoolArray


def intersection_over_union(one: BoolArray, other: BoolArray) -> float:
    """Return the IoU (Jaccard index) of two masks bool (H,W), 0..1; 1 when both are empty."""
    union = int(np.count_nonzero(one | other))
    return int(np.count_nonzero(one & other)) / union if union else 1.0


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
    x1, y1, x2, y2 = mask_to_box(mask) or (0, 0, 0, 0)
    return slice(y1, y2), slice(x1, x2)
