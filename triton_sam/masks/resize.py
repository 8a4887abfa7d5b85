"""Resizes low-resolution logits to the size of the image, as the official predictors do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..families.base import Family, FloatArray, Size
from .rle import BoolArray

_BLOCK_ROWS = 16
"""Rows blended at a time, few enough to keep the operands in the CPU's cache."""
_ROUNDING = np.float32(1e-6)
"""Share of the largest logit that exceeds the rounding error of a bilinear sample: 6 roundings of 6e-8 each."""
_FEW = 8
"""Below this fraction of an image, an eighth, blending single pixels is faster than blending rows."""


def resize_logits(logits: npt.ArrayLike, size: Size) -> FloatArray:
    """Resize logits bilinearly, without antialiasing, as the official predictors do before they threshold at 0.

    Equals torch.nn.functional.interpolate(mode="bilinear", align_corners=False), also computed in float32: the sample
    for output position i is at max((i + 0.5) * n_in / n_out - 0.5, 0), between its two neighbours.

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
    """Resize low-resolution logits to the size of the original image, as the family's official predictor does.

    For a family that stretches the image, this is one resize. For a family that pads the image, the logits are resized
    to the model's frame, cropped to remove the padding, and resized to the image, as in
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


def full_size_masks(
    logits: FloatArray, size: Size, family: Family | None, thresholds: Sequence[float] = (0.0,)
) -> list[BoolArray]:
    """Return exactly ``full_size_logits(logits, size, family) > threshold`` for each threshold, but faster.

    Pixels between four values on the same side of the threshold are not computed.

    Args:
        logits: (h,w) of the decoder, or other values of the image's parts.
        size: width and height of the original image, pixels.
        family: the family of the decoder; None: the values cover the image, without padding.

    Returns:
        bool (height,width) for each threshold.
    """
    source = np.asarray(logits, np.float32)
    if family is not None and family.keep_aspect:
        width, height = family.resized(size)
        source = resize_logits(source, (family.image_size, family.image_size))[:height, :width]
    masks = []
    for threshold in thresholds:
        mask = _resized_mask(source, size, threshold)
        if mask is None:
            resized = resize_logits(source, size)
            return [resized > each for each in thresholds]
        masks.append(mask)
    return masks


def _resized_mask(source: FloatArray, size: Size, threshold: float) -> BoolArray | None:
    """Return exactly ``resize_logits(source, size) > threshold``; None if that is faster.

    Uncertain pixels are computed by the same operations.
    """
    (h, w), (width, height) = source.shape, size
    if h > height or w > width:  # _resize() begins with the rows, or few pixels are between two logits
        return None
    left, _, along = _taps(w, width)
    top, _, down = _taps(h, height)
    limit = float(np.abs(source).max() * _ROUNDING)  # NaN and infinity make all pixels uncertain
    sign = (source > threshold + limit).view(np.int8) - (source < threshold - limit).view(np.int8)
    pairs = sign + np.concatenate((sign[1:], sign[-1:]))
    cells = pairs + np.concatenate((pairs[:, 1:], pairs[:, -1:]), axis=1)  # 4 or -4 between logits on one side
    row, column = np.divmod(np.flatnonzero(np.abs(cells) != 4), w)
    first_y, first_x = np.searchsorted(top, np.arange(h + 1)), np.searchsorted(left, np.arange(w + 1))
    tallest, widest = np.diff(first_y).max(), np.diff(first_x).max()
    if len(row) * tallest * widest > width * height // _FEW:
        return None
    mask: BoolArray = (cells == 4).take(left, axis=1).take(top, axis=0)
    # The pixels of each uncertain cell, (cells,tallest,1) and (cells,1,widest). Smaller cells repeat their last pixels.
    y = np.minimum(first_y[row, None] + np.arange(tallest), first_y[row + 1, None] - 1)[:, :, None]
    x = np.minimum(first_x[column, None] + np.arange(widest), first_x[column + 1, None] - 1)[:, None, :]

    def blend_columns(rows: npt.NDArray[np.intp]) -> FloatArray:
        base = source[rows, column, None, None]
        sample: FloatArray = base + (source[rows, np.minimum(column + 1, w - 1), None, None] - base) * along[x]
        return sample

    upper = blend_columns(row)
    samples = upper + (blend_columns(np.minimum(row + 1, h - 1)) - upper) * down[y]
    mask.reshape(-1)[y * width + x] = samples > threshold
    return mask


def _resize(source: FloatArray, result: FloatArray) -> None:
    """Resize (h,w) into (H,W), first along the axis that leaves less work for the second step."""
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
