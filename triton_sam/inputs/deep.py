"""Images with values of more than 8 bits, and TIFF files with channels or compressions that Pillow does not support.

The extra `tiles` reads them: TIFF with tifffile, PNG with imagecodecs. Grey values need no extra.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .._common.extras import find_package, install
from ..errors import ImageError
from .header import (
    TURNED,
    Stream,
    content_of,
    has_deep_colours,
    is_deep,
    is_garbled,
    kind_of,
    number_type,
    png_turn,
    say_channels,
    say_stretch,
    say_upper_bits,
    tag,
    upright,
)
from .samples import (
    GDAL_NODATA,
    ORIENTATION,
    Bytes,
    Samples,
    Values,
    is_stretched,
    nodata_of,
    samples_of_page,
    value_range,
)

MAX_DEEP_PIXELS = 100_000_000
"""Maximum number of pixels of a file with more than 8 bits per grey value. Decoding it takes up to 4 bytes per pixel
in addition to the 4 bytes of the RGB image. Pillow's own limit applies to all files: 179 million pixels."""
_BYTES = 4
"""Bytes per pixel in this limit. Files with several channels may have as many bytes in total."""
_BLOCK_PIXELS = 1 << 22
"""Number of values converted at a time, to save memory."""
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""The first bytes of TIFF and BigTIFF files."""


Rows = Callable[[slice], Values]
"""Returns some rows of values (H,W) or (H,W,C)."""


def deep_meaning(image: Image.Image) -> tuple[Samples, str | None] | None:
    """Return the kind and data type of grey values that must be stretched to bytes; None for 8 bits."""
    dtype = number_type(image)
    if not is_deep(image) and dtype is None:
        return None
    pixels = np.dtype(dtype or {"I": "i4", "F": "f4"}.get(image.mode, "u2"))
    kind = kind_of(image)
    nodata = nodata_of(tag(image, GDAL_NODATA), pixels)
    return Samples("white is zero" if kind == "white is zero" else "grey", nodata=nodata), dtype


def needs_packages(image: Image.Image) -> bool:
    """Return whether Pillow would drop bits of the colours of an opened image, or read them wrongly."""
    return has_deep_colours(image) or is_garbled(image)


def has_packages(image: Image.Image) -> bool:
    """Return whether the packages that read an opened image better than Pillow are installed."""
    return find_package("tifffile" if image.format == "TIFF" else "imagecodecs") is not None


def check_deep_size(image: Image.Image, name: str) -> None:
    """Check the number of pixels of an opened image with grey values of more than 8 bits."""
    if is_deep(image) and image.width * image.height > MAX_DEEP_PIXELS:
        raise ImageError(
            f"{name} is too large: {image.width} x {image.height} pixels of more than 8 bits; at "
            f"most {MAX_DEEP_PIXELS} are possible: scale the values to 8 bits first"
        )


def refuse_garbled(image: Image.Image, name: str) -> None:
    """Refuse an opened file that Pillow would read wrongly."""
    if is_garbled(image):
        raise ImageError(f"{name} has planes of more than 8 bits, which need the extra tiles: {install('tiles')}")


def hint(stream: Stream) -> str:
    """Return advice for reading a file that Pillow does not support; "" if there is none."""
    if _start(stream) in _TIFF and find_package("tifffile") is None:
        return f". TIFF files of more kinds are read by the extra tiles: {install('tiles')}"
    return ""


def read_deep(image: Image.Image, stream: Stream, name: str) -> Image.Image | None:
    """Read an opened image for which needs_packages() is true.

    Returns:
        None: a package is missing, or the file is damaged or too large for the package. Pillow may read the upper bits.
    """
    found = None
    if 2 * len(image.getbands()) * image.width * image.height <= _BYTES * MAX_DEEP_PIXELS:
        found = read_tiff(stream, name) if image.format == "TIFF" else _read_png(stream, name)
    if found is None and not is_garbled(image):
        say_upper_bits(name)
    return found


def _read_png(stream: Stream, name: str) -> Image.Image | None:
    try:
        import imagecodecs
    except ImportError:
        return None
    content = content_of(stream)
    try:
        values = np.asarray(imagecodecs.png_decode(content))
    except Exception:  # noqa: BLE001 - Pillow's messages for damaged files are better
        return None
    return _shown(values, Samples(), png_turn(content), name)


def read_tiff(stream: Stream, name: str) -> Image.Image | None:
    """Read the first page of a TIFF file with tifffile; None if tifffile fails or is not installed."""
    if _start(stream) not in _TIFF:
        return None
    try:
        import tifffile
    except ImportError:
        return None
    if not isinstance(stream, Path):
        stream.seek(0)
    try:
        with tifffile.TiffFile(stream) as file:
            page: Any = file.pages.first
            if page.nbytes > _BYTES * MAX_DEEP_PIXELS:
                raise ImageError(
                    f"{name} is too large: {page.imagewidth} x {page.imagelength} pixels with {page.samplesperpixel} "
                    "channels: use `triton-sam large`"
                )
            values, axes = page.asarray(), str(page.axes)
            samples, turn = samples_of_page(page), page.tags.get(ORIENTATION)
        while axes[0] not in "YXS":  # the depth of a volume
            values, axes = values[0], axes[1:]
        if axes[0] == "S":
            values = np.moveaxis(values, 0, -1)
    except ImageError:
        raise
    except Exception:  # noqa: BLE001 - tifffile raises almost any exception; Pillow's errors are better
        return None
    if values.ndim == 3 and values.shape[2] > 4:
        say_channels(values.shape[2], name)
    # A damaged page may lack the places of its pixels.
    return _shown(values, samples, 1 if turn is None else int(turn.value), name) if values.size else None


def _shown(values: Values, samples: Samples, turn: int, name: str) -> Image.Image:
    colours = samples.colours(values)
    pixels = stretched(colours.__getitem__, colours.shape, samples, name)
    grey = pixels.ndim == 3 and pixels.shape[2] == 1
    return upright(Image.fromarray(pixels[:, :, 0] if grey else pixels).convert("RGB"), turn)


def tiff_size(stream: Stream) -> tuple[int, int] | None:
    """Return the upright width and height of a TIFF file that Pillow cannot open; None if tifffile cannot either."""
    if _start(stream) not in _TIFF:
        return None
    try:
        import tifffile

        if not isinstance(stream, Path):
            stream.seek(0)
        with tifffile.TiffFile(stream) as file:
            page: Any = file.pages.first
            size, turn = (int(page.imagewidth), int(page.imagelength)), page.tags.get(ORIENTATION)
    except Exception:  # noqa: BLE001 - it is not installed, or raises almost any exception for damaged files
        return None
    return size[::-1] if turn is not None and int(turn.value) in TURNED else size


def _start(stream: Stream) -> bytes:
    if isinstance(stream, Path):
        with stream.open("rb") as file:
            return file.read(4)
    return stream.getvalue()[:4]


def rows_of(image: Image.Image, dtype: str | None) -> Rows:
    """Return the rows of a grey Pillow image. Only one block is an array at a time."""

    def rows(part: slice) -> Values:
        values = np.asarray(image.crop((0, part.start, image.width, part.stop)))
        return values if dtype is None else values.view(dtype)

    return rows


def stretched(rows: Rows, shape: tuple[int, ...], samples: Samples, name: str | None) -> Bytes:
    """Scale values from minimum..maximum to 0..255, see Stretch. Only one block of rows is float at a time.

    Args:
        shape: shape of all values.
        name: name of the image for the log; None: nothing is logged.
    """
    dtype, limits = rows(slice(0, 1)).dtype, None
    if is_stretched(dtype):
        limits = value_range(map(rows, _row_blocks(shape)), samples.nodata)
        if limits is None:
            raise ImageError("the image has no finite pixel value: every pixel is NaN, infinite or nodata")
        if name is not None:
            say_stretch(*limits, name)
    stretch = samples.stretch(limits, dtype)
    found = np.empty(shape, np.uint8)
    for part in _row_blocks(shape):
        found[part] = stretch.to_bytes(rows(part))
    return found


def _row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    height, rows = shape[0], max(1, _BLOCK_PIXELS // math.prod(shape[1:]))
    for top in range(0, height, rows):
        yield slice(top, min(top + rows, height))
