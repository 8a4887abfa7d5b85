"""Boxes of masks (x1, y1, x2, y2 in pixels; x2 and y2 are one past the last pixel), and overlaps of masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .rle import BoolArray, foreground

Box = tuple[int, int, int, int]
Number = TypeVar("Number", int, float)
_Window = tuple[slice, slice]


def mask_to_box(mask: npt.ArrayLike) -> Box | None:
    """Return the tight box (x1, y1, x2, y2) of a mask (H,W); None for an empty mask.

    Coordinates are corners of pixels: x2 and y2 are one past the last foreground pixel, so that x2 - x1 is the width.

    Raises:
        InputError: the mask does not have two dimensions.
    """
    pixels = foreground(mask)
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    if rows.size == 0:
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def corner_and_size(box: tuple[Number, Number, Number, Number] | None) -> list[Number]:
    """Convert a box (x1, y1, x2, y2) to COCO's x, y, width, height; zeros for the box of an empty mask."""
    x1, y1, x2, y2 = box or (0, 0, 0, 0)
    return [x1, y1, x2 - x1, y2 - y1]


def suppressed(boxes: npt.ArrayLike, scores: npt.ArrayLike, threshold: float) -> list[int]:
    """Return the boxes kept by non-maximum suppression, highest score first, as torchvision.ops.nms in FP32."""
    corners = np.asarray(boxes, np.float32).reshape(-1, 4)
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    order = np.argsort(-np.asarray(scores, np.float32), kind="stable")
    kept: list[int] = []
    while order.size:
        first, order = int(order[0]), order[1:]
        kept.append(first)
        low = np.maximum(corners[first, :2], corners[order, :2])
        high = np.minimum(corners[first, 2:], corners[order, 2:])
        common = np.prod(np.maximum(high - low, 0), axis=1)
        with np.errstate(invalid="ignore"):
            overlap = common / (areas[first] + areas[order] - common)
        order = order[~(overlap.astype(np.float64) > threshold)]  # torchvision compares in float64
    return kept


def intersection_over_union(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Return the IoU (Jaccard index) of two masks (H,W), foreground where not 0: 0..1; 1 if both are empty.

    Raises:
        InputError: the masks differ in size.
    """
    one, other = foreground(one), foreground(other)
    if one.shape != other.shape:
        raise InputError(f"the masks have {one.shape} and {other.shape} rows and columns")
    union = int(np.count_nonzero(one | other))
    return int(np.count_nonzero(one & other)) / union if union else 1.0


def share_matched(masks: Sequence[BoolArray], others: Sequence[BoolArray], least: float) -> float:
    """Return the share of masks with a counterpart among others: an IoU of at least ``least``.

    Args:
        masks: bool (H,W), all of one size.
        others: masks of the same size. Several masks may have the same counterpart.
        least: minimum IoU of a mask and its counterpart, above 0 and at most 1.

    Returns:
        0..1; 1 without masks.
    """
    if not masks:
        return 1.0
    found = [(mask, _window(mask), int(np.count_nonzero(mask))) for mask in others]
    return sum(_has_counterpart(mask, found, least) for mask in masks) / len(masks)


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
