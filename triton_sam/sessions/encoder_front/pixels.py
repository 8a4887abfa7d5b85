"""Turns the input of a front end into the input of the encoder."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

from ...errors import ImageError, InputError
from ...families.base import Family, FloatArray, Size
from ...inputs.formats import FORMATS
from ...inputs.header import open_header
from ...inputs.images import encoder_input, open_image
from ...wire.encoder_front import JPEG_IMAGE, PIXELS, VALID_SIZE, Pixels

TOLERANCE = 1e-3
"""In the mode `auto`, values outside 0..1 by at most this still count as RGB in 0..1: less than a step of a byte."""
LIMIT = 10.0
"""Largest absolute value of a raw tensor. Normalised bytes are between -2.2 and 2.7."""
_BYTE = np.float32(1 / 255)
_SNAP = 1e-3
"""Largest distance from an integer, in steps of a byte, at which a value counts as that byte. Rounding causes 1e-4."""


def from_raw(tensor: FloatArray, family: Family, pixels: Pixels, valid_size: Size | None = None) -> FloatArray:
    """Return the encoder's input for a raw tensor; the tensor itself if no change is needed.

    Args:
        tensor: float32 (B,3,S,S) RGB, either in 0..1 or normalised by the family's mean and standard deviation.
        family: the SAM family, for S images of S pixels.
        pixels: the content of the tensor. `auto` means: SAM3's tensors are normalised, since all of its clients send
            -1..1; other tensors are normalised if any value is below 0 or above 1 by more than TOLERANCE, otherwise
            RGB in 0..1.
        valid_size: width and height of the image inside the square; the rest becomes the family's padding.

    Returns:
        float32 (B,3,S,S) in family.value_range.
    """
    if len(tensor) == 0:
        raise InputError("the tensor has no image: send at least one")
    low, high = float(tensor.min()), float(tensor.max())
    if not max(abs(low), abs(high)) <= LIMIT:  # also true for NaN
        raise InputError(
            f"the values of the tensor lie between {low:g} and {high:g}: send RGB / 255, or normalise it ({PIXELS})"
        )
    takes_unit = family.value_range == (0.0, 1.0)
    if pixels == "auto":
        outside = low < -TOLERANCE or high > 1 + TOLERANCE
        pixels = "normalised" if outside or not takes_unit else "unit"
    if pixels == "normalised" and takes_unit:
        tensor = _denormalised(tensor, family)
    elif pixels == "unit" and not takes_unit:
        black, white = family.value_range
        tensor = tensor * np.float32(white - black) + np.float32(black)
    return tensor if valid_size is None else padded(tensor, family, valid_size)


def from_jpeg(content: bytes, family: Family, valid_size: Size | None = None) -> FloatArray:
    """Return the encoder's input for a compressed image, which already has the size of the encoder's input.

    It equals the input that this package's own clients send for the same file.

    Returns:
        float32 (1,3,S,S) in family.value_range.
    """
    _check_size(content, family.image_size)
    tensor = encoder_input(open_image(content, FORMATS), family)
    return tensor if valid_size is None else padded(tensor, family, valid_size)


def padded(tensor: FloatArray, family: Family, valid_size: Size) -> FloatArray:
    """Return a copy of (B,3,S,S) with the family's padding outside the image, which is at the top left."""
    width, height = valid_size
    side = tensor.shape[-1]
    if not (1 <= width <= side and 1 <= height <= side):
        raise InputError(f"{VALID_SIZE} must be a width and a height from 1 to {side}, not {width} and {height}")
    color = np.array(family.pad_color, np.float32)[:, None, None]
    result = np.empty_like(tensor)
    result[...] = color
    result[:, :, :height, :width] = tensor[:, :, :height, :width]
    return result


def _check_size(content: bytes, side: int) -> None:
    """Check the size in the header of an image before its pixels are read: a small file may claim a huge size."""
    try:
        with open_header(io.BytesIO(content), FORMATS) as header:
            width, height = header.size
    except Exception:  # noqa: BLE001 - Pillow's parsers raise almost any exception, and open_image() names the fault
        return
    if (width, height) != (side, side):
        raise ImageError(
            f"{JPEG_IMAGE} has {width} x {height} pixels, but the encoder takes {side} x {side}: scale it first"
        )


def read_valid_size(array: npt.NDArray[np.int32] | None) -> Size | None:
    """Return the input `valid_size`, INT32 (2,), as width and height; None if the request has none."""
    if array is None:
        return None
    width, height = (int(side) for side in array)
    return width, height


def _denormalised(tensor: FloatArray, family: Family) -> FloatArray:
    """Return normalised RGB (B,3,S,S) as RGB in 0..1.

    If all values come from bytes, they become exactly the values of RGB / 255, so that the embeddings do not depend on
    the form in which the image was sent. A value of 0 is padding, and becomes the mean.
    """
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (family.pixel_mean, family.pixel_std))
    unit: FloatArray = tensor * std + mean
    bytes_ = np.rint(unit * 255)
    is_padding = tensor == 0
    if np.all((np.abs(unit * 255 - bytes_) < _SNAP) | is_padding):
        np.copyto(unit, bytes_ * _BYTE, where=~is_padding)
    return unit
