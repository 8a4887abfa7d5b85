"""Open a picture from whatever the caller has, and turn it into the encoder's input."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Union

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from ..errors import ImageError
from ..families.base import Family, FloatArray, Size
from .resample import resize_bytes

ImageSource = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, Image.Image, "npt.NDArray[np.generic]"]
"""A path, encoded bytes (JPEG, PNG, WebP, TIFF, BMP, ...), a Pillow image, or an array (H,W), (H,W,3), (H,W,4)."""

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
"""What servers open for whoever sends it, in Pillow's names. Its other decoders see the user's own files alone: they
are many and rarely used, and the one for EPS starts a program."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what turns the picture upright."""
TURNED = (5, 6, 7, 8)
"""EXIF orientations that swap width and height."""
_SAYS_ORIENTATION = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")


def open_image(source: ImageSource, formats: tuple[str, ...] | None = None) -> Image.Image:
    """Open a picture as 8-bit RGB, turned upright by its EXIF orientation.

    Transparency is dropped. Grey pictures with more than 8 bits (16-bit, 32-bit, float) and arrays of 16 bits are
    stretched from their own minimum..maximum to 0..255, since microscopes rarely use the full range. Of files with more
    than 8 bits a colour, Pillow reads the upper 8. An animation gives its first frame.

    Args:
        source: see ImageSource. Arrays are RGB (or grey) and not modified; an EXIF orientation is not known for them.
        formats: of encoded bytes or a file, in Pillow's names, for example FORMATS. None: all that Pillow reads.

    Returns:
        Pillow image of mode RGB, always a new one.

    Raises:
        ImageError: the source is missing, empty, damaged, too large, or no picture at all.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source)
    image = source if isinstance(source, Image.Image) else _decode(source, formats)
    try:
        if image.width == 0 or image.height == 0:
            raise ImageError("the image has no pixels")
        return _to_rgb(_upright(image))
    except ImageError:
        raise
    except Exception as error:  # Pillow's decoders let almost any exception through for damaged data
        raise ImageError(f"{_describe(source)} is damaged: {_reason(error)}") from error


def image_bytes(source: ImageSource) -> bytes:
    """Return a picture as encoded bytes from which open_image() makes the very same pixels, and servers too.

    Files and encoded bytes of FORMATS stay as they are, and are not decoded; all else that can be opened becomes PNG.

    Raises:
        ImageError: the source is missing, empty, unreadable, or no picture at all.
    """
    if isinstance(source, (np.ndarray, Image.Image)):
        return _to_png(source)
    if isinstance(source, (str, os.PathLike)):
        _check_file(Path(source))
        try:
            return _in_known_format(Path(source).read_bytes())
        except OSError as error:
            raise ImageError(f"{_describe(source)} cannot be read: {_reason(error)}") from error
    if not isinstance(source, (bytes, bytearray, memoryview)):
        raise ImageError(_no_source(source))
    if len(source) == 0:
        raise ImageError("the image is empty (0 bytes)")
    return _in_known_format(bytes(source))


def encoder_input(image: Image.Image, family: Family) -> FloatArray:
    """Resize an RGB image as the family's official predictor does, as the encoder's input tensor.

    All use an antialiased bilinear filter, on different numbers, and rounding is part of the reference: the wrong one
    changes masks (SAM2 with bytes: IoU 0.998; SAM3 with Pillow's bytes: 0.9995).

    Args:
        image: RGB, any size.
        family: the family whose frame, padding and value range apply.

    Returns:
        float32 (1,3,S,S) with S = family.image_size, values in family.value_range.
    """
    side = family.image_size
    width, height = size = family.resized(image.size)
    low, high = family.value_range
    tensor = np.empty((1, 3, side, side), np.float32)
    for plane, band, color in zip(tensor[0], _resize(image, size, family), family.pad_color, strict=True):
        np.multiply(band, np.float32((high - low) / 255.0), out=plane[:height, :width])
        if low:
            plane[:height, :width] += np.float32(low)
        plane[height:] = plane[:height, width:] = np.float32(color)
    return tensor


def _resize(image: Image.Image, size: Size, family: Family) -> Iterator[npt.NDArray[np.generic]]:
    """Yield the three bands (height,width) in 0..255."""
    if family.resampling == "fixed_point":
        yield from resize_bytes(np.asarray(image), size)
    elif family.resampling == "pillow":
        yield from np.asarray(image.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    else:
        for band in image.split():
            # On float bands Pillow's filter equals torchvision's Resize of a float tensor.
            yield np.asarray(band.convert("F").resize(size, Image.Resampling.BILINEAR))


def _in_known_format(content: bytes) -> bytes:
    """Return encoded bytes as they are if servers open them, or if nobody does: they say best what is wrong."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS):
            return content
    except UnidentifiedImageError:
        with contextlib.suppress(ImageError):
            return _to_png(content)
    except Exception:  # noqa: BLE001 - Pillow's parsers let almost any exception through
        return content
    return content


def _to_png(source: ImageSource) -> bytes:
    buffer = io.BytesIO()
    open_image(source).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _decode(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, formats: tuple[str, ...] | None
) -> Image.Image:
    """Open a file or encoded bytes; pixels are read here, so that a damaged file fails here."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        if len(source) == 0:
            raise ImageError("the image is empty (0 bytes)")
        stream: io.BytesIO | Path = io.BytesIO(source)
    elif isinstance(source, (str, os.PathLike)):
        stream = Path(source)
        _check_file(stream)
    else:
        raise ImageError(_no_source(source))
    try:
        with Image.open(stream, formats=formats) as image:
            image.load()
            return image
    except Image.DecompressionBombError as error:
        raise ImageError(f"{_describe(source)} is too large: {error}") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{_describe(source)} is not an image that Pillow can read") from error
    except Exception as error:  # Pillow's decoders let almost any exception through for damaged data
        raise ImageError(f"{_describe(source)} cannot be read: {_reason(error)}") from error


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise ImageError(f"{path} is a folder, not an image")
        if not path.exists():
            raise ImageError(f"no image at {path}")
        if path.is_file() and path.stat().st_size == 0:
            raise ImageError(f"{path} is empty (0 bytes)")
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise ImageError(f"{path} cannot be read: {error.strerror}") from error


def _from_array(array: npt.NDArray[np.generic]) -> Image.Image:
    shape = array.shape
    if array.ndim == 3 and shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and shape[2] not in (3, 4)):
        raise ImageError(f"an image array must be (H,W), (H,W,3) or (H,W,4), not {shape}")
    if 0 in shape:
        raise ImageError(f"the image array has no pixels: {shape}")
    if array.ndim == 3:
        array = array[:, :, :3]
    if array.dtype == np.uint16:
        array = _stretch(array)
    elif array.dtype != np.uint8:
        raise ImageError(f"an image array must be uint8 (or uint16), not {array.dtype}: scale it to 0..255 first")
    return Image.fromarray(np.ascontiguousarray(array)).convert("RGB")


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a picture as it was opened, 1..8; 1 where EXIF data is missing or damaged."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - as Pillow's decoders, and the pixels are there
        return 1


def _upright(image: Image.Image) -> Image.Image:
    """Turn a picture by its EXIF orientation, and leave out what says it; damaged EXIF data is none."""
    image.load()
    turn = _TURNS.get(orientation(image))
    if turn is None:
        return image
    upright = image.transpose(turn)
    for name in _SAYS_ORIENTATION:
        upright.info.pop(name, None)
    return upright


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_stretch(np.asarray(image))).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        # Straight to RGB, Pillow warns about palettes with per-entry alpha.
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _stretch(array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Scale minimum..maximum to 0..255; non-finite values count as the minimum."""
    values = array.astype(np.float32)
    finite = np.isfinite(values)
    if not finite.any():
        raise ImageError("the image has no finite pixel value")
    low, high = values[finite].min(), values[finite].max()
    values = np.where(finite, values, low)
    scale = 255.0 / (high - low) if high > low else 0.0
    stretched: npt.NDArray[np.uint8] = np.rint((values - low) * scale).astype(np.uint8)
    return stretched


def _describe(source: object) -> str:
    if isinstance(source, (str, os.PathLike)):
        return str(source)
    return "the image"


def _no_source(source: object) -> str:
    kind = type(source).__name__
    return f"cannot open an image from {kind}: give a path, encoded bytes, a Pillow image or a numpy array"


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
