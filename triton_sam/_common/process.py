"""Runs a program: it prints any text in any output encoding, sends no telemetry, and prints errors as one line."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, MutableMapping

from ..errors import SamError
from .signals import ends_by_interrupt
from .text import valid_utf8

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
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


def run_program(run: Callable[[], int], name: str = "", hint: Callable[[SamError], str] = lambda _: "") -> int:
    """Run a program and return its exit code. Errors of the package and of files are printed without a traceback.

    Args:
        name: text before each message, for example "triton-sam: ".
        hint: returns the end of the message about an error.
    """
    print_every_text()
    try:
        with ends_by_interrupt():  # however a program ends, its temporary files are removed and its server stopped
            return run()
    except SamError as error:
        message = f"error: {error}{hint(error)}"
    except BrokenPipeError:  # the reader of the output has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes standard output again at exit
        return EXIT_ERROR
    except FileExistsError as error:  # a folder cannot be made
        message = f"error: {error.filename} is a file: give a folder, or another name"
    except OSError as error:  # a result file cannot be written; errors of servers and inputs are SamErrors
        place = error.filename2 or error.filename or "cannot write"  # of a copy, the file that is written
        message = f"error: {place}: {error.strerror or error}"
    except UnicodeEncodeError as error:  # a library accepts only UTF-8 file names
        reason = "has characters that this locale does not allow, or is not UTF-8: set LC_ALL=C.UTF-8, or rename it"
        message = f"error: {valid_utf8(error.object)} {reason}"
    except KeyboardInterrupt:
        print(f"{name}interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(f"{name}{message}", file=sys.stderr)
    return EXIT_ERROR
