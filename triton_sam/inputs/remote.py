"""Read files at URLs with fsspec and universal_pathlib, with retries while a storage is unavailable.

Text files from other programs are UTF-8 or UTF-16, with or without a byte-order mark.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from .._common.backoff import spread
from .._common.extras import missing
from ..errors import ConfigurationError, DownloadError, ImageError, InputError, MissingDependencyError, SamError

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


ATTEMPTS = 4
PAUSE = 1.0
"""Maximum seconds before the first retry; each further pause is twice as long."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOST = range(400, 500)
_LATER = (408, 429)
"""HTTP status codes below 500 that are retried."""
_NOT_THERE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_AWAY = (OSError, asyncio.TimeoutError)
_BLOCK = 1 << 20
"""Bytes per request to a file that is read in parts."""

Answer = TypeVar("Answer")


def place_of(text: str) -> Path:
    """Return the path for a text. A URL becomes a path of universal_pathlib, which has the methods of Path."""
    if not _URL.match(text):
        return Path(text)
    try:
        from upath import UPath
    except ImportError as error:
        raise missing("URLs need", "remote", error) from error
    if text.lower().startswith("file://"):
        return Path(UPath(text).path)
    try:
        place = UPath(text)
        place.fs  # noqa: B018 - creates the file system, whose packages may be missing
    except ImportError as error:
        package = getattr(error.__cause__, "name", None)  # fsspec's message does not always name it
        how = f"{package} is missing: pip install {package}" if package else str(error)
        raise MissingDependencyError(f"{text} needs another package: {how}") from error
    except ValueError as error:
        raise ConfigurationError(f"{text}: {error}. Copy the files to this machine") from error
    return cast(Path, place)


def is_remote(place: object) -> bool:
    return hasattr(place, "fs")


def exists(path: Path) -> bool:
    """Return whether a file or folder exists at a URL."""
    remote = cast(Any, path)
    return bool(patiently(str(path), lambda: remote.fs.exists(remote.path)))


def content_at(place: Path) -> bytes:
    """Return the content of a file at a URL."""
    remote = cast(Any, place)
    return cast(bytes, patiently(str(place), lambda: remote.fs.cat_file(remote.path)))


def copy_of(place: Path, folder: Path) -> Path:
    """Copy a file at a URL into a local folder."""
    remote, copy = cast(Any, place), folder / place.name
    patiently(str(place), lambda: remote.fs.get_file(remote.path, str(copy)))
    return copy


def patiently(name: str, call: Callable[[], Answer]) -> Answer:
    """Call a function of fsspec, with retries while the storage is unavailable."""
    for pause in (*pauses(), None):
        try:
            return call()
        except SamError:
            raise
        except Exception as error:  # file systems of fsspec raise the errors of their own packages
            failure = failure_of(name, error)
            if pause is None or isinstance(failure, ImageError):
                raise failure from error
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def pauses() -> Iterator[float]:
    """Yield the seconds before each further attempt."""
    return (spread(PAUSE * 2**attempt) for attempt in range(ATTEMPTS - 1))


def failure_of(name: str, error: Exception) -> SamError:
    """Return the error of a file system as a DownloadError if a retry may help, else as an ImageError."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and (isinstance(cause, _AWAY) or getattr(cause, "status", 404) != 404):
        error = cast(Exception, cause)  # fsspec raises FileNotFoundError for every failure of a web server
    status = getattr(error, "status", None)
    final = isinstance(error, _NOT_THERE) or (status in _LOST and status not in _LATER)
    return (ImageError if final else DownloadError)(f"{name} cannot be read: {_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return " ".join(f"{type(error).__name__}: {error}".split())


class RemoteFile:
    """A binary file at a URL that is read in parts, by one thread at a time.

    Attributes:
        failure: the first error, because a library that reads the file may continue after errors; None without one.
    """

    mode = "rb"
    closed = False

    def __init__(self, place: Path) -> None:
        self.name = str(place)
        self.failure: SamError | None = None
        remote = cast(Any, place)
        options = {"block_size": _BLOCK, "cache_type": "blockcache"}
        self._file: Any = patiently(self.name, lambda: remote.fs.open(remote.path, "rb", **options))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a byte and return its number."""
        return self._of_parts(lambda: int(self._file.seek(offset, whence)))

    def tell(self) -> int:
        """Return the number of the next byte."""
        return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        return self._of_parts(lambda: bytes(self._file.read(size)))

    def close(self) -> None:
        self.closed = True
        self._file.close()

    def _of_parts(self, call: Callable[[], Answer]) -> Answer:
        def once() -> Answer:
            try:
                return call()
            except ValueError as error:  # the web server does not support ranges
                message = f"{self.name} cannot be read in parts: copy it to this machine"
                raise ImageError(message) from error

        try:
            return patiently(self.name, once)
        except SamError as error:
            self.failure = self.failure or error
            raise
