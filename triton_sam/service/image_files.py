"""Uploaded image files: header checks, the stored form, and previews."""

from __future__ import annotations

import asyncio
import io

from PIL import Image

from .._common.checks import is_base64
from ..errors import MissingDependencyError
from ..families.base import Size
from ..inputs.deep import hint, tiff_size
from ..inputs.formats import FORMATS, UPLOADS, is_heic
from ..inputs.header import open_header, upright_size
from ..inputs.images import open_image, servers_read, to_png
from .budgets import Workers
from .problems import Problem

MEGA = 1_000_000
PREVIEW_SIDE = 4096
AS_JPEG = "save it as JPEG (on an iPhone: Settings, Camera, Formats, Most Compatible)"


def check_image(content: bytes, max_megapixels: float) -> Size:
    """Return width and height, upright, after reading only the header."""
    if not content:
        raise Problem(400, "the image is empty (0 bytes)")
    limit = Image.MAX_IMAGE_PIXELS
    try:
        width, height = _size_of(io.BytesIO(content))
    except Image.DecompressionBombError:
        raise Problem(413, f"the image has more than {2 * (limit or 0) / MEGA:.0f} million pixels") from None
    except MissingDependencyError as error:
        raise Problem(415, f"{error}; or {AS_JPEG}") from None
    except Exception:  # noqa: BLE001 - Pillow's parsers raise almost any exception
        if is_heic(content):
            raise Problem(415, f"the HEIC image is damaged: {AS_JPEG}") from None
        if is_base64(content):
            raise Problem(415, "these bytes are base64: send those of the image file itself") from None
        known = ", ".join(UPLOADS)
        raise Problem(415, f"unsupported or damaged image; supported: {known}{hint(io.BytesIO(content))}") from None
    if width * height > max_megapixels * MEGA:
        raise Problem(413, f"the image has {width} x {height} pixels; at most {max_megapixels:g} million are taken")
    return width, height


def _size_of(stream: io.BytesIO) -> Size:
    try:
        with open_header(stream, UPLOADS) as image:
            # EXIF data behind a PNG's pixels would need decoding; Engine._embed makes the final check.
            return image.size if image.format == "PNG" else upright_size(image)
    except Image.DecompressionBombError:
        raise
    except Exception:
        size = tiff_size(stream)
        if size is None:
            raise
        return size


async def accept_image(content: bytes, max_megapixels: float, workers: Workers) -> tuple[bytes, Size]:
    """Check an image; return the bytes to store and to send to Triton, with width and height, upright.

    An image that Triton cannot read, or reads differently than this project (see open_image()), becomes a PNG with all
    its pixels, for example a HEIC photograph. Other images stay unchanged.
    """
    size = await asyncio.to_thread(check_image, content, max_megapixels)
    if await asyncio.to_thread(servers_read, content):
        return content, size

    def convert() -> tuple[bytes, Size]:
        converted = to_png(content, UPLOADS)
        return converted, check_image(converted, max_megapixels)  # there may be more pixels than the header says

    return await workers.call(size[0] * size[1], convert)


def to_jpeg(content: bytes) -> bytes:
    """Return an image as JPEG, its sides at most PREVIEW_SIDE."""
    image = open_image(content, FORMATS)
    image.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
