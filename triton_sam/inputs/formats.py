"""The table of image formats: their file suffixes, and where they are decoded.

Pillow reads HEIC photographs (from phones) with the optional package pillow-heif.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .._common.extras import find_package, missing

HEIF = "HEIF"
"""Pillow's name for the format of HEIC photographs, which the extra `heic` reads."""

HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
"""The brands of HEIF files (ISO/IEC 23008-12), which follow `ftyp`."""
_HEIF_START = 12
"""Number of bytes that identify a HEIF file."""


@dataclass(frozen=True)
class ImageFormat:
    """A format of image files.

    Args:
        sent: whether every server decodes it, so that clients send its files unchanged. Clients and the service send
            other formats as PNG.
    """

    name: str
    suffixes: tuple[str, ...]
    sent: bool = False
    uploaded: bool = False


TABLE = (
    ImageFormat("JPEG", (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"), sent=True, uploaded=True),
    ImageFormat("PNG", (".png", ".apng"), sent=True, uploaded=True),
    ImageFormat("WEBP", (".webp",), sent=True, uploaded=True),
    ImageFormat("TIFF", (".tif", ".tiff"), sent=True, uploaded=True),
    ImageFormat("BMP", (".bmp",), sent=True, uploaded=True),
    ImageFormat("GIF", (".gif",), sent=True, uploaded=True),
    ImageFormat("AVIF", (".avif", ".avifs"), uploaded=True),
    ImageFormat("JPEG2000", (".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx"), uploaded=True),
    ImageFormat(HEIF, (".heic", ".heif", ".hif"), uploaded=True),
    # Not uploaded: Pillow decodes the text forms of PPM, and QOI, in Python code that would block all other requests,
    # and files of the other formats are recognised by a few bytes at most.
    ImageFormat("PPM", (".ppm", ".pgm", ".pbm", ".pnm", ".pfm")),
    ImageFormat("DIB", (".dib",)),
    ImageFormat("TGA", (".tga",)),
    ImageFormat("QOI", (".qoi",)),
    ImageFormat("PCX", (".pcx",)),
    ImageFormat("SGI", (".sgi",)),
)

FORMATS = tuple(each.name for each in TABLE if each.sent)
"""The formats, in Pillow's names, that every server decodes."""
UPLOADS = tuple(each.name for each in TABLE if each.uploaded)
"""The formats that the service accepts."""
SUFFIXES = tuple(suffix for each in TABLE for suffix in each.suffixes)
"""The suffixes, in lower case, of image files in a folder."""

RASTER_SUFFIXES = (".jp2", ".j2k", ".vrt", ".img")
"""The suffixes of large images that rasterio (GDAL) opens: JPEG 2000, VRT mosaics and ERDAS Imagine."""
LARGE_SUFFIXES = (".tif", ".tiff", ".btf", ".tf8", ".svs", ".ndpi", ".scn", ".bif", ".qptiff", ".jp2", ".j2k")
"""The suffixes of large image files in a folder: TIFF, including microscopes' formats, and JPEG 2000."""


def is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def is_heic(start: bytes) -> bool:
    """Return whether a file that starts with these bytes (at least 12) is a HEIF file."""
    return start[4:8] == b"ftyp" and start[8:12] in HEIF_BRANDS


def starts_heic(source: BinaryIO | Path) -> bool:
    """Return whether a file, or an open file that can be rewound, is a HEIF file."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            return is_heic(file.read(_HEIF_START))
    source.seek(0)
    return is_heic(source.read(_HEIF_START))


def reads_heic() -> bool:
    return find_package("pillow_heif") is not None


def register_opener() -> None:
    """Let Pillow open HEIF files in this process."""
    try:
        import pillow_heif
    except ImportError as error:
        raise missing("HEIC images need", "heic", error) from error
    pillow_heif.register_heif_opener()
