"""Open an image from any supported source and turn it into the input tensor of an encoder."""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Union
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from ..errors import ImageError, MissingDependencyError
from ..families.base import Family, FloatArray, Size
from .formats import FORMATS, HEIF
from .heic import register_opener, starts_heic
from .resample import resize_bytes

PlainSource = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, Image.Image, "npt.NDArray[np.generic]"]
"""The sources that can be opened several times."""
ImageSource = PlainSource | BinaryIO
"""A path or ``file://`` URL, a file opened for reading bytes, encoded bytes (JPEG, PNG, WebP, TIFF, BMP, ...), a Pillow
image, or a uint8 or uint16 array (H,W), (H,W,3) or (H,W,4)."""

MAX_DEEP_PIXELS = 100_000_000
"""Maximum number of pixels of a file with more than 8 bits for each grey value. Decoding it takes up to 4 bytes a pixel
besides the 4 bytes of the RGB image. Pillow's own limit holds for all files: 179 million pixels."""
_BLOCK_PIXELS = 1 << 22
"""Number of pixels that are converted at a time, so that the converted values take little memory."""

_UPRIGHT_OPERATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that turns an image upright, by its EXIF orientation."""
TURNED = (5, 6, 7, 8)
"""EXIF orientations whose images are stored with width and height swapped."""
_ORIENTATION_METADATA = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
"""The keys of ``Image.info`` that may hold the orientation."""


def plain_source(source: ImageSource) -> PlainSource:
    """Return a source that can be opened several times: the bytes of an open file, the path of a ``file://`` URL.

    An open file is read from its position to its end. Every other source is returned unchanged.

    Raises:
        ImageError: the file is opened as text, closed or unreadable, or the URL is not valid or leads elsewhere.
    """
    if isinstance(source, str) and source.lower().startswith("file://"):
        return _path_of(source)
    if isinstance(source, str) and source.lower().startswith(("http://", "https://")):
        raise ImageError(f"{source} lies in the web: download it first, by set_image(triton_sam.fetch_image(URL))")
    if isinstance(source, (np.ndarray, Image.Image)) or not hasattr(source, "read"):
        return source
    try:
        content = source.read()
    except (OSError, ValueError) as error:  # ValueError: the file is closed
        raise ImageError(f"the open file cannot be read: {_reason(error)}") from error
    if not isinstance(content, bytes):
        raise ImageError("the file is opened as text: open it with mode 'rb'")
    return content


def _path_of(url: str) -> Path:
    try:
        parts = urlsplit(url)
    except ValueError as error:  # for example, a bracket is not closed
        raise ImageError(f"{url} is not a valid URL: write file:///path/of/the/file") from error
    if parts.netloc not in ("", "localhost"):
        raise ImageError(f"{url} names a file of another machine: write file:///path/of/the/file")
    return Path(url2pathname(parts.path))


def open_image(source: ImageSource, formats: tuple[str, ...] | None = None) -> Image.Image:
    """Open an image as 8-bit RGB and turn it upright by its EXIF orientation.

    The alpha channel is dropped. The values of a grey image with more than 8 bits (16-bit, 32-bit, float) and of a
    16-bit array are stretched from their own minimum..maximum to 0..255, because microscopes rarely use the full range.
    Pillow reads only the upper 8 bits of each channel of a colour file. For an animation, the first frame is returned.

    Args:
        source: see ImageSource. An array holds RGB or grey values and is not modified; it has no EXIF orientation.
        formats: the accepted formats of a file or of encoded bytes, in Pillow's names, for example FORMATS. None
            accepts every format that Pillow reads.

    Returns:
        A new Pillow image of mode RGB.

    Raises:
        ImageError: the source is missing, empty, damaged, too large, or not an image.
        MissingDependencyError: a HEIC photograph, without the extra `heic`.
    """
    plain = plain_source(source)
    if isinstance(plain, np.ndarray):
        return _from_array(plain)
    image = plain if isinstance(plain, Image.Image) else _decode(plain, formats)
    try:
        if image.width == 0 or image.height == 0:
            raise ImageError("the image has no pixels")
        image = _upright(image)
        if _is_deep(image):
            image = Image.fromarray(_stretch(_BlocksOfImage(image)))  # this frees the image of more bits
        return _to_rgb(image)
    except ImageError:
        raise
    except Exception as error:  # for damaged data, Pillow's decoders raise almost any exception
        raise ImageError(f"{_describe(source)} is damaged: {_reason(error)}") from error


def image_bytes(source: ImageSource) -> bytes:
    """Encode an image as bytes that decode, here and on a server, to the same pixels as ``open_image(source)``.

    Files and encoded bytes in one of FORMATS are returned unchanged and are not decoded. Every other image is encoded
    as PNG. Bytes that Pillow cannot identify are also returned unchanged: the server reports the error.

    Raises:
        ImageError: the source is missing, empty or unreadable, or it has an unsupported type.
        MissingDependencyError: a HEIC photograph, without the extra `heic`.
    """
    source = plain_source(source)
    if isinstance(source, (np.ndarray, Image.Image)):
        return to_png(source)
    if isinstance(source, (str, os.PathLike)):
        _check_file(Path(source))
        try:
            return _in_known_format(Path(source).read_bytes())
        except OSError as error:
            raise ImageError(f"{_describe(source)} cannot be read: {_reason(error)}") from error
    if not isinstance(source, (bytes, bytearray, memoryview)):
        raise ImageError(_unsupported_source(source))
    if len(source) == 0:
        raise ImageError("the image is empty (0 bytes)")
    return _in_known_format(bytes(source))


def encoder_input(image: Image.Image, family: Family) -> FloatArray:
    """Turn an RGB image into the encoder's input tensor, resized exactly as the family's official predictor resizes it.

    All official predictors use an antialiased bilinear filter, but they differ in number format and rounding. The wrong
    rounding changes the masks: resizing bytes instead of floats gives SAM2 an IoU of 0.998 with the reference, and
    Pillow's rounding of bytes instead of torch's gives SAM3 0.9995.

    Args:
        image: RGB image of any size.
        family: the family whose input size, padding and value range apply.

    Returns:
        float32 (1,3,S,S) with S = family.image_size and values in family.value_range.
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
    """Yield the red, green and blue band of the resized image: (height,width), values in 0..255."""
    if family.resampling == "fixed_point":
        yield from resize_bytes(np.asarray(image), size)
    elif family.resampling == "pillow":
        yield from np.asarray(image.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    else:
        for channel in range(3):  # one by one, since the floats of a band take as much memory as the image
            # Applied to a float band, Pillow's filter gives the same result as torchvision's Resize of a float tensor.
            yield np.asarray(image.getchannel(channel).convert("F").resize(size, Image.Resampling.BILINEAR))


def _in_known_format(content: bytes) -> bytes:
    """Return encoded bytes unchanged, or as PNG if only this process can open them.

    Bytes that nobody can open are returned unchanged too, because the server's error names the fault best.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS):
            return content
    except UnidentifiedImageError:
        with contextlib.suppress(ImageError):
            return to_png(content)
    except Exception:  # noqa: BLE001 - Pillow's parsers raise almost any exception
        return content
    return content


def to_png(source: ImageSource, formats: tuple[str, ...] | None = None) -> bytes:
    """Return what ``open_image(source, formats)`` opens as PNG, with all its pixels.

    Raises:
        ImageError: as open_image().
        MissingDependencyError: as open_image().
    """
    buffer = io.BytesIO()
    open_image(source, formats).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _decode(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, formats: tuple[str, ...] | None
) -> Image.Image:
    """Open a file or encoded bytes and read the pixels, so that a damaged file fails here and not later."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        if len(source) == 0:
            raise ImageError("the image is empty (0 bytes)")
        stream: io.BytesIO | Path = io.BytesIO(source)
    elif isinstance(source, (str, os.PathLike)):
        stream = Path(source)
        _check_file(stream)
    else:
        raise ImageError(_unsupported_source(source))
    try:
        with open_header(stream, formats) as image:
            if _is_deep(image) and image.width * image.height > MAX_DEEP_PIXELS:
                raise ImageError(
                    f"{_describe(source)} is too large: {image.width} x {image.height} pixels of more than 8 bits; at "
                    f"most {MAX_DEEP_PIXELS} are possible: scale the values to 8 bits first"
                )
            image.load()
            return image
    except (ImageError, MissingDependencyError):
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"{_describe(source)} is too large: {error}") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{_describe(source)} is not an image that Pillow can read") from error
    except Exception as error:  # for damaged data, Pillow's decoders raise almost any exception
        raise ImageError(f"{_describe(source)} cannot be read: {_reason(error)}") from error


def open_header(stream: io.BytesIO | Path, formats: tuple[str, ...] | None = None) -> Image.Image:
    """Open an image by Pillow, which reads no pixels yet, and HEIC photographs only with the extra for them.

    Args:
        stream: a file, or its content.
        formats: the accepted formats; only with HEIF among them, or with None, is a HEIC photograph opened.

    Raises:
        Exception: whatever Pillow raises for a file that it cannot read.
        MissingDependencyError: a HEIC photograph, without the extra `heic`.
    """
    try:
        return Image.open(stream, formats=[each for each in formats if each != HEIF] if formats else None)
    except UnidentifiedImageError:
        if (formats and HEIF not in formats) or not starts_heic(stream):
            raise
    register_opener()
    return Image.open(stream, formats=(HEIF,))


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise ImageError(f"{path} is a folder, not an image")
        if not path.exists():
            raise ImageError(f"there is no image at {path}")
        if path.is_file() and path.stat().st_size == 0:
            raise ImageError(f"{path} is empty (0 bytes)")
    except OSError as error:  # the name is too long, or the folder may not be read
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
        array = _stretch(_BlocksOfArray(array))
    elif array.dtype != np.uint8:
        raise ImageError(f"an image array must be uint8 or uint16, not {array.dtype}: scale it to 0..255 first")
    return Image.fromarray(np.ascontiguousarray(array)).convert("RGB")


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an opened image, 1..8; 1 (upright) if EXIF data is missing or damaged."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - damaged EXIF data raises almost any exception, and the pixels are still good
        return 1


def _upright(image: Image.Image) -> Image.Image:
    """Turn an image upright by its EXIF orientation, and drop the metadata that would turn it a second time."""
    image.load()
    operation = _UPRIGHT_OPERATIONS.get(orientation(image))
    if operation is None:
        return image
    upright = image.transpose(operation)
    for name in _ORIENTATION_METADATA:
        upright.info.pop(name, None)
    return upright


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "P" and "transparency" in image.info:
        # Converting straight to RGB makes Pillow warn about palettes with an alpha value for each entry.
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _is_deep(image: Image.Image) -> bool:
    """Return whether the pixels are grey values of more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


class _BlocksOfImage:
    """The rows of a grey Pillow image as arrays, of which only one block exists at a time."""

    def __init__(self, image: Image.Image) -> None:
        self.shape: tuple[int, ...] = (image.height, image.width)
        self._image = image

    def rows(self, top: int, bottom: int) -> npt.NDArray[np.generic]:
        """Return some rows."""
        return np.asarray(self._image.crop((0, top, self._image.width, bottom)))


class _BlocksOfArray:
    """The rows of an array (H,W) or (H,W,C)."""

    def __init__(self, array: npt.NDArray[np.generic]) -> None:
        self.shape = array.shape
        self._array = array

    def rows(self, top: int, bottom: int) -> npt.NDArray[np.generic]:
        """Return some rows."""
        return self._array[top:bottom]


def _row_blocks(width: int, height: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of each block of rows, and the row behind its last."""
    rows = max(1, _BLOCK_PIXELS // width)
    for top in range(0, height, rows):
        yield top, min(top + rows, height)


def _stretch(source: _BlocksOfImage | _BlocksOfArray) -> npt.NDArray[np.uint8]:
    """Scale the values from minimum..maximum to 0..255; NaN and infinity count as the minimum.

    The values are floats only within one block of rows.
    """
    height, width = source.shape[0], math.prod(source.shape[1:])
    low, high = np.float32(np.inf), np.float32(-np.inf)
    for top, bottom in _row_blocks(width, height):
        values = source.rows(top, bottom).astype(np.float32)
        finite = np.isfinite(values)
        low = min(low, values.min(where=finite, initial=np.inf))
        high = max(high, values.max(where=finite, initial=-np.inf))
    if high < low:
        raise ImageError("the image has no finite pixel value: every pixel is NaN or infinite")
    scale = 255.0 / (high - low) if high > low else 0.0
    stretched = np.empty(source.shape, np.uint8)
    for top, bottom in _row_blocks(width, height):
        values = source.rows(top, bottom).astype(np.float32)
        values[~np.isfinite(values)] = low
        values -= low
        values *= scale
        stretched[top:bottom] = np.rint(values, out=values).astype(np.uint8)
    return stretched


def _describe(source: object) -> str:
    return str(source) if isinstance(source, (str, os.PathLike)) else "the image"


def _unsupported_source(source: object) -> str:
    kind = type(source).__name__
    return f"cannot open an image from {kind}: give a path, encoded bytes, a Pillow image or a numpy array"


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
