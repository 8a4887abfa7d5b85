"""Uploaded image files: the check of the header, and previews."""

from __future__ import annotations

import io

from PIL import Image

from ..families.base import Size
from ..inputs.heic import is_heic
from ..inputs.images import FORMATS, TURNED, open_image, orientation
from .problems import Problem

MEGA = 1_000_000
PREVIEW_SIDE = 4096


def check_image(content: bytes, max_megapixels: float) -> Size:
    """Read an image's header only; return width and height, upright.

    Raises:
        Problem: 400, empty; 415, not an image of a known format; 413, too many pixels.
    """
    if not content:
        raise Problem(400, "the image is empty (0 bytes)")
    limit = Image.MAX_IMAGE_PIXELS
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
            # A PNG would be decoded to look for EXIF data behind its pixels; see Engine._embed for the final word.
            turned = image.format != "PNG" and orientation(image) in TURNED
    except Image.DecompressionBombError:
        raise Problem(413, f"the image has more than {2 * (limit or 0) / MEGA:.0f} million pixels") from None
    except Exception:  # noqa: BLE001 - Pillow's parsers let almost any exception through
        if is_heic(content):
            raise Problem(
                415,
                "HEIC images are not read: save it as JPEG (on an iPhone: Settings, Camera, Formats, Most Compatible)",
            ) from None
        raise Problem(415, f"the image is none of {', '.join(FORMATS)}, or damaged") from None
    if width * height > max_megapixels * MEGA:
        raise Problem(413, f"the image has {width} x {height} pixels; at most {max_megapixels:g} million are taken")
    return (height, width) if turned else (width, height)


def to_jpeg(content: bytes) -> bytes:
    """Return an image as JPEG, no side longer than PREVIEW_SIDE.

    Raises:
        ImageError: the image is damaged.
    """
    image = open_image(content, FORMATS)
    image.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
