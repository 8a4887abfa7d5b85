"""The filters of the official mask generators: utils/amg.py of the packages segment_anything and sam2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from ..families.base import FloatArray, Size
from ..masks.boxes import Box, mask_to_box
from ..masks.rle import BoolArray

_EDGE = 20
"""Pixels between a box and the edge of its crop within which the mask counts as cut off."""


def crop_boxes(size: Size, layers: int, overlap_ratio: float) -> Iterator[tuple[Box, int]]:
    """Yield the whole image and then all crops, each with its layer: generate_crop_boxes of the official code."""
    width, height = size
    yield (0, 0, width, height), 0
    for layer in range(1, layers + 1):
        count = 2**layer
        overlap = int(overlap_ratio * min(size) * (2 / count))
        wide, high = (math.ceil((overlap * (count - 1) + side) / count) for side in size)
        lefts, tops = ([(length - overlap) * index for index in range(count)] for length in (wide, high))
        for left, top in itertools.product(lefts, tops):
            yield (left, top, min(left + wide, width), min(top + high, height)), layer


def stability_of(logits: FloatArray, threshold: float, offset: float) -> float:
    """Return the IoU of the masks at two thresholds, 0..1; 0.0 if both are empty, where the official code has NaN.

    Reference: calculate_stability_score.
    """
    inner, outer = (np.count_nonzero(logits > threshold + sign * offset) for sign in (1, -1))
    return float(np.float32(inner) / np.float32(outer)) if outer else 0.0


def last_pixels(mask: BoolArray) -> Box:
    """Return the first and the last column and row of a mask as x1, y1, x2, y2; zeros if it is empty."""
    box = mask_to_box(mask)
    return (0, 0, 0, 0) if box is None else (box[0], box[1], box[2] - 1, box[3] - 1)


def is_cut_off(box: Box, crop: Box, whole: Size) -> bool:
    """Whether a box in pixels of its crop ends near an edge of the crop that is not one of the image."""
    placed = np.add(box, (crop[0], crop[1], crop[0], crop[1]))
    near_crop = np.abs(placed - crop) <= _EDGE
    near_image = np.abs(placed - (0, 0, *whole)) <= _EDGE
    return bool((near_crop & ~near_image).any())
