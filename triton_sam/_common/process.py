"""Prepares the process of a program: it prints any text in any output encoding, and sends no telemetry."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import MutableMapping

_HANDLER = "triton_sam.printing"


def print_every_text() -> None:
    """Make standard output accept any text instead of raising UnicodeEncodeError.

    File names that are not UTF-8 are printed as their bytes, so that a program reading the output finds the files. A
    character that the encoding lacks becomes an escape such as `\\u2248`.
    """
    codecs.register_error(_HANDLER, _bytes_or_escapes)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_HANDLER)


def _bytes_or_escapes(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return b"".join(_byte_or_escape(character) for character in characters), error.end


def _byte_or_escape(character: str) -> bytes:
    if "\udc80" <= character <= "\udcff":  # os.fsdecode() returns this for a byte that it cannot decode
        return bytes([ord(character) - 0xDC00])
    return character.encode("ascii", errors="backslashreplace")


VARIABLE = "ORT_DISABLE_TELEMETRY"


def turn_off_telemetry(environment: MutableMapping[str, str] = os.environ) -> None:
    """Turn off ONNX Runtime's telemetry, unless the user has set its environment variable.

    By default, ONNX Runtime sends reports over the network (1.31 also on Linux). Call this before importing it.
    """
    environment.setdefault(VARIABLE, "1")
