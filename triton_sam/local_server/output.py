"""The output of tritonserver, as its supervisor reads it.

This file imports only the standard library (see supervisor.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

MOST_BYTES_OF_OWN_LOG = 16 << 20
MOST_READS = 16
"""Number of reads of 64 KiB after which the supervisor checks for signals, even if there is more output."""
_BLOCK = 1 << 16


class Output:
    """The output of tritonserver: either a file, or a pipe that is copied to standard error."""

    def __init__(self, log_file: str, *, is_own: bool = False) -> None:
        self._log_file = log_file
        self._is_own = is_own
        self._tail = b""
        self._begin = 0
        self.pipe: int | None = None
        self.writer = 2
        if not log_file:
            self.pipe, self.writer = os.pipe()
            os.set_blocking(self.pipe, False)

    def remember_place(self) -> None:
        """Limit has_said() to later lines."""
        self._tail, self._begin = b"", size_of(self._log_file)

    def has_said(self, words: bytes) -> bool:
        """Return whether tritonserver wrote some words. From a pipe, only the last 64 KiB are kept."""
        self.copy()
        return words in (self._tail if self.pipe is not None else read_from(self._log_file, self._begin))

    def copy(self) -> None:
        """Copy the content of the pipe to standard error, at most 1 MiB at a time."""
        if self.pipe is None:
            return
        for _ in range(MOST_READS):
            try:
                content = os.read(self.pipe, _BLOCK)
            except OSError:  # the pipe is empty
                return
            self._tail = (self._tail + content)[-_BLOCK:]
            with contextlib.suppress(OSError):  # standard error is closed
                write_all(2, content)

    def limit(self) -> None:
        """Empty a temporary log that has become too long. /tmp may be in memory."""
        if self._is_own and size_of(self._log_file) > MOST_BYTES_OF_OWN_LOG:
            with contextlib.suppress(OSError):
                os.truncate(self._log_file, 0)  # every writer appends
                self._begin = 0
                log(f"the log was emptied, because it was longer than {MOST_BYTES_OF_OWN_LOG >> 20} MiB")


def log(text: str) -> None:
    """Write one line to tritonserver's log, which may be closed already."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"triton-sam: {text}\n")
        sys.stderr.flush()


def write_all(descriptor: int, content: bytes) -> None:
    """Write bytes to a file or a pipe, in several parts if necessary."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def size_of(path: str) -> int:
    """Return the size of a file in bytes; 0 if it cannot be read."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def read_from(path: str, offset: int) -> bytes:
    """Return the bytes of a file from `offset` on; b"" if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError:
        return b""
