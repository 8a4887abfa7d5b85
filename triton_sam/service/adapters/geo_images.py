"""Images of maps: those with many channels or deep colours become images that the models take."""

from __future__ import annotations

import io
import tempfile

from PIL import Image

from ..._common.extras import install
from ...errors import ImageError, MissingDependencyError
from ...inputs.formats import FORMATS
from ...inputs.images import image_bytes
from ..image_files import MEGA
from ..problems import Problem

TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""The first bytes of TIFF and BigTIFF files."""


def plain_image(content: bytes, max_megapixels: float) -> bytes:
    """Return an image file that Pillow reads: the content itself, or the first three channels of a TIFF as PNG.

    This blocks. Channels of more than 8 bits are stretched from their range to 0..255.

    Raises:
        Problem: 413, the image has too many pixels; 415, it is a TIFF that cannot be read here.
    """
    if content[:4] not in TIFF or _is_plain(content):
        return content
    from ...tiles.opening import open_large_image

    try:
        with tempfile.NamedTemporaryFile(suffix=".tif") as file:
            file.write(content)
            file.flush()
            with open_large_image(file.name) as image:
                width, height = image.size
                if width * height > max_megapixels * MEGA:
                    raise Problem(
                        413,
                        f"the image has {width} x {height} pixels; at most {max_megapixels:g} million are taken",
                    )
                pixels = image.levels[0].read(0, 0, width, height)
    except MissingDependencyError:
        raise Problem(415, f"this kind of TIFF needs more packages at the service: {install('tiles')}") from None
    except ImageError as error:
        raise Problem(415, f"the image cannot be read: {str(error).rpartition(': ')[2]}"[:200]) from None
    return image_bytes(pixels)


def _is_plain(content: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return image.mode != "CMYK" and not image.mode.startswith(("LAB", "YCbCr"))
    except Exception:  # noqa: BLE001 - Pillow's parsers let almost any exception through
        return False
