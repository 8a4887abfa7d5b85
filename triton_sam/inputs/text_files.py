"""Read text files from other programs: UTF-8 or UTF-16, with or without a byte-order mark."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

from ..errors import InputError, SamError
from .remote import content_at, is_remote

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The first bytes of a file in UTF-16, which PowerShell writes."""


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a file without its byte-order mark. Line endings are kept.

    Args:
        errors: "strict", or "surrogateescape" for lists of file names, which need not be UTF-8.
    """
    try:
        content = content_at(path) if is_remote(path) else path.read_bytes()
    except SamError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a null character in the name
        raise InputError(f"{path} cannot be read: {error}") from error
    encoding = "utf-16" if content.startswith(_UTF16) else "utf-8-sig"
    try:
        return content.decode(encoding, errors)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} cannot be read: line {line} is not text in UTF-8 ({content[error.start : error.start + 4]!r}): "
            "save the file as UTF-8 (in Excel: CSV UTF-8)"
        ) from error


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, in an encoding that read_text() supports."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
