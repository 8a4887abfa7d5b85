"""Resizes low-resolution logits to the size of the image, as the official predictors do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..families.base import Family, FloatArray, Size

_BLOCK_ROWS = 16
"""Number of rows blended at a time. It is small enough for the operands to stay in the processor's cache."""


def resize_logits(logits: npt.ArrayLike, size: Size) -> FloatArray:
    """Resize logits bilinearly, without antialiasing, as the official predictors do before they threshold at 0.

    Equals torch.nn.functional.interpolate(mode="bilinear", align_corners=False): the sample for output position i lies
    at max((i + 0.5) * n_in / n_out - 0.5, 0), between its two neighbours; computed in float32 as there.

    Args:
        logits: [..., h, w], any real type.
        size: width and height of the result, pixels.

    Returns:
        float32 [..., height, width], a new array.

    Raises:
        InputError: fewer than two dimensions, no pixels, or a size below 1.
    """
    source = np.asarray(logits, np.float32)
    width, height = size
    if source.ndim < 2 or 0 in source.shape[-2:]:
        raise InputError(f"logits must be [..., h, w] with h and w above 0, not {source.shape}")
    if width < 1 or height < 1:
        raise InputError(f"cannot resize logits to {width} x {height} pixels")
    result = np.empty((*source.shape[:-2], height, width), np.float32)
    for index in np.ndindex(source.shape[:-2]):
        _resize(source[index], result[index])
    return result


def full_size_logits(logits: npt.ArrayLike, size: Size, family: Family) -> FloatArray:
    """Bring low-resolution logits to the size of the original image, as the family's official predictor does.

    For a family that squashes the image, this is one resize. For a family that pads it, the logits are resized to the
    model's frame, the padding is cut off, and the rest is resized to the image, as in
    segment_anything.modeling.Sam.postprocess_masks.

    Args:
        logits: [..., h, w] of the decoder.
        size: width and height of the original image, pixels.
        family: the family of the decoder.

    Returns:
        float32 [..., height, width], a new array.
    """
    if not family.keep_aspect:
        return resize_logits(logits, size)
    width, height = family.resized(size)
    frame = resize_logits(logits, (family.image_size, family.image_size))
    return resize_logits(frame[..., :height, :width], size)


def _resize(source: FloatArray, result: FloatArray) -> None:
    """Resize (h,w) into (H,W), starting with the axis that leaves less work for the second step."""
    height, width = result.shape
    if source.shape[0] > height:
        rows = np.empty((height, source.shape[1]), np.float32)
        _blend_rows(source, rows)
        source = rows
    if source.shape[1] != width:
        columns = np.empty((width, source.shape[0]), np.float32)
        _blend_rows(np.ascontiguousarray(source.T), columns)
        source = np.ascontiguousarray(columns.T)
    _blend_rows(source, result)


def _blend_rows(source: FloatArray, result: FloatArray) -> None:
    """Interpolate rows (n_in,w) to (n_out,w)."""
    if len(source) == len(result):
        np.copyto(result, source)
        return
    lower, upper, weight = _taps(len(source), len(result))
    for start in range(0, len(result), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        # lower + (upper - lower) * weight, in place
        base = source[lower[part]]
        target = np.subtract(source[upper[part]], base, out=result[part])
        target *= weight[part, None]
        target += base


def _taps(n_in: int, n_out: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray]:
    """Return, for each output position, its two input positions and the weight of the second one."""
    scale = np.float32(n_in) / np.float32(n_out)
    position = np.maximum((np.arange(n_out, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5), 0)
    lower = np.minimum(position.astype(np.intp), n_in - 1)
    weight: FloatArray = np.clip(position - lower.astype(np.float32), 0, 1)
    return lower, np.minimum(lower + 1, n_in - 1), weight
