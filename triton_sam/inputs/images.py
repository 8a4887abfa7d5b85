"""Open an image from any supported source and turn it into the input tensor of an encoder."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Union
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from .._common.text import first_line
from ..errors import ImageError, MissingDependencyError
from ..families.base import Family, FloatArray, Size
from .deep import (
    check_deep_size,
    deep_meaning,
    has_packages,
    hint,
    needs_packages,
    read_deep,
    read_tiff,
    refuse_garbled,
    rows_of,
    stretched,
)
from .formats import FORMATS
from .header import (
    content_of,
    count_pages,
    is_preview,
    open_header,
    orientation,
    say_pages,
    say_transparency,
    turned_back,
    upright,
    without_texts,
)
from .samples import Samples

PlainSource = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, Image.Image, "npt.NDArray[np.generic]"]
"""The sources that can be opened several times."""
ImageSource = PlainSource | BinaryIO
"""A path or ``file://`` URL, a file opened for reading bytes, encoded bytes (JPEG, PNG, WebP, TIFF, BMP, ...), a Pillow
image, or a uint8 or uint16 array (H,W), (H,W,3) or (H,W,4)."""


def plain_source(source: ImageSource) -> PlainSource:
    """Return a source that can be opened several times: the bytes of an open file, the path of a ``file://`` URL.

    An open file is read from its position to its end. Every other source is returned unchanged.
    """
    if isinstance(source, str) and source.lower().startswith("file://"):
        return _path_of(source)
    if isinstance(source, str) and source.lower().startswith(("http://", "https://")):
        raise ImageError(f"{source} is a URL: download it first with set_image(triton_sam.fetch_image(URL))")
    if isinstance(source, (np.ndarray, Image.Image)) or not hasattr(source, "read"):
        return source
    try:
        content = source.read()
    except (OSError, ValueError) as error:  # ValueError: the file is closed
        raise ImageError(f"the open file cannot be read: {first_line(error)}") from error
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

    The alpha channel is dropped. Values of more than 8 bits (16-bit, 32-bit, float) are stretched from their own
    minimum..maximum to 0..255, because microscopes rarely use the full range. NaN, infinity and GDAL's nodata value
    are ignored in this range, and become 0. The first page or frame of a file is returned. Each of these changes is
    logged once.

    The extra `tiles` reads colours of more than 8 bits, and TIFF files with channels that Pillow does not support.
    Without it, or with FORMATS, Pillow reads the upper 8 bits of deeper colours.

    Args:
        source: see ImageSource. An array holds RGB or grey values and is not modified; it has no EXIF orientation.
        formats: the accepted formats of a file or of encoded bytes, in Pillow's names. FORMATS accepts the formats that
            every server decodes, with Pillow only; None accepts every format that Pillow reads.

    Returns:
        A new Pillow image of mode RGB.
    """
    plain = plain_source(source)
    if isinstance(plain, np.ndarray):
        return _from_array(plain)
    if not isinstance(plain, Image.Image):
        return _decode(plain, formats)
    try:
        return _to_rgb(plain, None)
    except ImageError:
        raise
    except Exception as error:  # for damaged data, Pillow's decoders raise almost any exception
        raise ImageError(f"{_describe(source)} is damaged: {first_line(error)}") from error


def image_bytes(source: ImageSource) -> bytes:
    """Encode an image as bytes that decode, here and on a server, to the same pixels as ``open_image(source)``.

    Files and encoded bytes in one of FORMATS are returned unchanged, without decoding, if Pillow needs no other package
    to read their pixels correctly. Every other image is encoded as PNG. Bytes that Pillow cannot identify are also
    returned unchanged: the server reports the error.
    """
    source = plain_source(source)
    if isinstance(source, (np.ndarray, Image.Image)):
        return to_png(source)
    stream, name = _stream_of(source), _describe(source)
    try:
        return _as_servers_read(content_of(stream), name)
    except OSError as error:
        raise ImageError(f"{name} cannot be read: {first_line(error)}") from error


def pages_of(source: str | os.PathLike[str] | bytes) -> int:
    """Return the number of pages or frames of an image file, at most 100; 1 for a file that cannot be opened."""
    try:
        stream = Path(source) if isinstance(source, (str, os.PathLike)) else io.BytesIO(source)
        with open_header(stream) as image:
            return count_pages(image)
    except Exception:  # noqa: BLE001 - open_image() names the fault
        return 1


def encoder_input(image: Image.Image, family: Family) -> FloatArray:
    """Turn an RGB image into the encoder's input tensor, resized exactly as the family's official predictor resizes it.

    All official predictors use an antialiased bilinear filter, but they differ in number format and rounding. Wrong
    rounding changes the masks: the IoU with the reference falls to 0.998 if SAM2's images are resized as bytes instead
    of floats, and to 0.9995 if SAM3's bytes are rounded as in Pillow instead of torch.

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
        from .resample import resize_bytes

        yield from resize_bytes(np.asarray(image), size)
    elif family.resampling == "pillow":
        yield from np.asarray(image.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    else:
        for channel in range(3):  # one by one, because the floats of a band take as much memory as the image
            # Applied to a float band, Pillow's filter gives the same result as torchvision's Resize of a float tensor.
            yield np.asarray(image.getchannel(channel).convert("F").resize(size, Image.Resampling.BILINEAR))


def frame_input(frame: Image.Image, side: int, value_range: tuple[float, float] = (0.0, 1.0)) -> FloatArray:
    """Turn a frame into the input of an encoder that squashes its images.

    Unlike single images, frames are resized with Pillow's default, a bicubic filter on bytes: see
    sam2.utils.misc._load_img_as_tensor.

    Returns:
        float32 (1,3,side,side) in the value range.
    """
    resized = frame.resize((side, side), Image.Resampling.BICUBIC)
    values = np.empty((1, 3, side, side), np.float32)
    # The predictor divides in float64, then rounds. For byte values, float32 gives the same result.
    for channel, plane in enumerate(resized.split()):
        np.divide(np.asarray(plane), np.float32(255), out=values[0, channel])
    low, high = value_range
    if (low, high) != (0, 1):
        values *= np.float32(high - low)
        values += np.float32(low)
    return values


def mask_prompt(mask: npt.NDArray[np.bool_], side: int) -> FloatArray:
    """Turn a mask prompt into the input of the mask_prompt model.

    The mask is resized bilinearly with antialiasing and thresholded at 0.5, as in SAM2VideoPredictor.add_new_mask.

    Returns:
        float32 (1,1,side,side): 1 inside the object, 0 outside.
    """
    if mask.shape == (side, side):
        return mask.astype(np.float32)[None, None]
    values = Image.fromarray(mask.astype(np.float32))
    resized = np.asarray(values.resize((side, side), Image.Resampling.BILINEAR))
    return (resized >= 0.5).astype(np.float32)[None, None]


def _as_servers_read(content: bytes, name: str) -> bytes:
    """Return encoded bytes unchanged, or as PNG if a server might read other pixels.

    Bytes that cannot be opened are also returned unchanged, because the server's error is clearer.
    """
    try:
        with open_header(io.BytesIO(content), FORMATS) as image:
            if _is_for_pillow(image):
                say_pages(image, name)
                return content
    except UnidentifiedImageError:
        pass
    except Exception:  # noqa: BLE001 - Pillow's parsers raise almost any exception
        return content
    with contextlib.suppress(ImageError):
        return to_png(content)
    return content


def servers_read(content: bytes) -> bool:
    """Return whether every server reads the same pixels as open_image(), with Pillow only."""
    try:
        with open_header(io.BytesIO(content), FORMATS) as image:
            return _is_for_pillow(image)
    except Exception:  # noqa: BLE001 - Pillow's parsers raise almost any exception
        return False


def _is_for_pillow(image: Image.Image) -> bool:
    """Return whether open_image() reads an opened image with Pillow only."""
    return not needs_packages(image) or not has_packages(image)


def to_png(source: ImageSource, formats: tuple[str, ...] | None = None, turn: int = 1) -> bytes:
    """Return ``open_image(source, formats)`` as PNG, turned back if its file has the EXIF orientation ``turn``."""
    buffer = io.BytesIO()
    turned_back(open_image(source, formats), turn).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _decode(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, formats: tuple[str, ...] | None
) -> Image.Image:
    """Open a file or encoded bytes and read the pixels, so that a damaged file fails here."""
    stream = _stream_of(source)
    name, by_packages = _describe(source), formats is None or not set(formats) <= set(FORMATS)
    try:
        return _decode_by_pillow(stream, formats, name, by_packages)
    except (ImageError, MissingDependencyError):
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name} is too large: {error}") from error
    except Exception as error:  # for damaged data, Pillow's decoders raise almost any exception
        other = read_tiff(stream, name) if by_packages else None
        if other is not None:
            return other
        if isinstance(error, UnidentifiedImageError):
            raise ImageError(f"{name} is not an image that Pillow can read{hint(stream)}") from error
        raise ImageError(f"{name} cannot be read: {first_line(error)}") from error


def _stream_of(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> io.BytesIO | Path:
    """Return an existing file, or encoded bytes, in a form that Pillow opens."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        if len(source) == 0:
            raise ImageError("the image is empty (0 bytes)")
        return io.BytesIO(bytes(source))  # of a strided memoryview, too
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        _check_file(path)
        return path
    kind = type(source).__name__
    raise ImageError(f"cannot open an image from {kind}: give a path, encoded bytes, a Pillow image or a numpy array")


def _decode_by_pillow(
    stream: io.BytesIO | Path, formats: tuple[str, ...] | None, name: str, by_packages: bool
) -> Image.Image:
    with open_header(stream, formats) as image:
        if is_preview(image):
            raise ImageError(f"{name} is a raw photograph, of which only the preview can be read: export a TIFF file")
        check_deep_size(image, name)
        if by_packages:
            say_pages(image, name)
        if needs_packages(image):
            found = read_deep(image, stream, name) if by_packages else None
            if found is not None:
                return found
            refuse_garbled(image, name)
        try:
            image.load()
        except ValueError:  # long texts after the pixels of a PNG file
            lean = without_texts(stream)
            if lean is None:
                raise
            return _to_rgb(Image.open(lean, formats=("PNG",)), name if by_packages else None)
        return _to_rgb(image, name if by_packages else None)


def _to_rgb(image: Image.Image, name: str | None) -> Image.Image:
    """Return an opened image as RGB, upright.

    Args:
        name: name of the image for the log; None: nothing is logged.
    """
    if image.width == 0 or image.height == 0:
        raise ImageError("the image has no pixels")
    image.load()
    if image.mode == "La":  # Pillow converts it to LA alone
        image = image.convert("LA")
    meaning = deep_meaning(image)
    image = upright(image, orientation(image))
    if meaning is not None:
        samples, dtype = meaning
        rows, shape = rows_of(image, dtype), (image.height, image.width)
        image = Image.fromarray(stretched(rows, shape, samples, name))  # this frees the image of more bits
    elif name is not None:
        say_transparency(image, name)
    if image.mode == "P" and "transparency" in image.info:
        # Converting straight to RGB makes Pillow warn about palettes with an alpha value for each entry.
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


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
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == np.uint16:
        array = stretched(array.__getitem__, array.shape, Samples(), None)
    elif array.dtype != np.uint8:
        raise ImageError(f"an image array must be uint8 or uint16, not {array.dtype}: scale it to 0..255 first")
    return Image.fromarray(np.ascontiguousarray(array)).convert("RGB")


def _describe(source: object) -> str:
    return str(source) if isinstance(source, (str, os.PathLike)) else "the image"
