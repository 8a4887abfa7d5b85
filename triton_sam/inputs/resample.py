"""Resize 8-bit images exactly as torch does, with an antialiased bilinear filter in fixed-point arithmetic.

SAM3's official predictor resizes this way. torchvision resizes a uint8 tensor with integer weights of 15 bits: first
the width, then the height, with rounding to bytes in between. Pillow's weights have 22 bits, so one value in 300
differs by 1. Reference: ATen's UpSampleKernel.cpp and UpSampleKernelAVXAntialias.h, for CPUs with AVX2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..families.base import Size

Bytes = npt.NDArray[np.uint8]

_BLOCK = 16
"""Output positions per matrix product: a larger block multiplies more zeros, a smaller one needs more products."""
_WEIGHT_BITS = 15


@dataclass(frozen=True)
class _Taps:
    """The filter taps of each output position: the input positions that it averages, and their weights.

    Args:
        weights: float32 (n_out, taps), integer values, 0 where there is no tap; a row sums to about 2**precision.
    """

    first: npt.NDArray[np.intp]
    weights: npt.NDArray[np.float32]
    precision: int


def resize_bytes(pixels: Bytes, size: Size) -> Bytes:
    """Resize an image as torchvision.transforms.functional.resize(uint8 tensor, antialias=True) does.

    Returns:
        uint8 (C,height,width).
    """
    width, height = size
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if width != planes.shape[2]:
        planes = _resize_rows(planes, width)
    if height != planes.shape[1]:
        planes = _resize_rows(planes.transpose(0, 2, 1), height).transpose(0, 2, 1)
    return planes


def _resize_rows(planes: Bytes, n_out: int) -> Bytes:
    """Resize the last axis of (C,H,n_in) to n_out.

    All sums stay below 2**24, so a fast matrix product of float32 values gives exact integers.
    """
    taps = _taps(planes.shape[2], n_out)
    result = np.empty((*planes.shape[:2], n_out), np.uint8)
    half = np.float32(0.5)
    scale = np.float32(2.0**-taps.precision)
    for start in range(0, n_out, _BLOCK):
        stop = min(start + _BLOCK, n_out)
        low = int(taps.first[start])
        high = min(int(taps.first[stop - 1]) + taps.weights.shape[1], planes.shape[2])
        matrix = np.zeros((high - low, stop - start), np.float32)
        for column in range(start, stop):
            first = int(taps.first[column]) - low
            row = taps.weights[column][: high - low - first]
            matrix[first : first + len(row), column - start] = row
        sums = planes[..., low:high].astype(np.float32) @ matrix
        result[..., start:stop] = np.clip(np.floor(sums * scale + half), 0, 255)
    return result


def _taps(n_in: int, n_out: int) -> _Taps:
    """Return the taps of a triangle filter whose width grows with the factor by which the image shrinks."""
    scale = n_in / n_out
    support = max(scale, 1.0)
    center = scale * (np.arange(n_out) + 0.5)
    first = np.maximum((center - support + 0.5).astype(np.intp), 0)
    count = np.minimum((center + support + 0.5).astype(np.intp), n_in) - first
    offsets = np.arange(math.ceil(support) * 2 + 1)
    distance = np.abs((offsets + first[:, None] - center[:, None] + 0.5) / support)
    weights = np.where(offsets < count[:, None], np.maximum(1.0 - distance, 0.0), 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    largest, precision = float(weights.max()), 0
    while precision < 22 and int(0.5 + largest * 2 ** (precision + 1)) < 2**_WEIGHT_BITS:
        precision += 1
    return _Taps(first, np.floor(0.5 + weights * 2**precision).astype(np.float32), precision)
