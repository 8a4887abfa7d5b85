"""HEIC photographs, as phones take them. Pillow reads them with the package pillow-heif, which is optional."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from .._common.extras import find_package, missing

BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
"""The brands of HEIF files (ISO/IEC 23008-12), which stand behind `ftyp`."""
_START = 12
"""Bytes that tell whether a file is a HEIF file."""


def is_heic(start: bytes) -> bool:
    """Return whether a file that begins with these bytes (at least 12) is a HEIF file."""
    return start[4:8] == b"ftyp" and start[8:12] in BRANDS


def starts_heic(source: BinaryIO | Path) -> bool:
    """Return whether a file, or an open file that can be rewound, is a HEIF file."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            return is_heic(file.read(_START))
    source.seek(0)
    return is_heic(source.read(_START))


def reads_heic() -> bool:
    """Return whether the extra `heic` is installed."""
    return find_package("pillow_heif") is not None


def register_opener() -> None:
    """Let Pillow open HEIF files in this process.

    Raises:
        MissingDependencyError: pillow-heif is not installed.
    """
    try:
        import pillow_heif
    except ImportError as error:
        raise missing("HEIC images need", "heic", error) from error
    pillow_heif.register_heif_opener()
