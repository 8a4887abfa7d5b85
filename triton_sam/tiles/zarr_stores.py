"""Zarr stores that record their failures, so that a failed read leaves no tasks behind, and retry reads from a URL.

zarr reads the chunks of a part in tasks. If a task raises an error, zarr does not await the other tasks, and asyncio
logs an error for each when the program ends. The stores here therefore return None instead of raising, and
read_errors() raises the error. An error of a codec, which decompresses chunks, still leaves tasks behind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from zarr.storage import FsspecStore, WrapperStore

from ..errors import ImageError
from ..inputs.remote import failure_of, pauses

FAILURES: ContextVar[list[Exception]] = ContextVar("failures")
"""The failures of the read to which a task belongs."""


@contextlib.contextmanager
def read_errors() -> Iterator[None]:
    """Raise the recorded failures of the reads in the block."""
    failures: list[Exception] = []
    token = FAILURES.set(failures)
    try:
        yield
    except Exception as error:
        if failures:
            raise failures[0] from error
        raise
    finally:
        FAILURES.reset(token)
    if failures:
        raise failures[0]


class CheckedArray:
    """A Zarr array in a store that records its failures."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.chunks = array.chunks

    def __getitem__(self, part: Any) -> Any:
        with read_errors():
            return self._array[part]


class NotingStore(WrapperStore[Any]):
    """Wraps a store and records its failures. It is read inside read_errors()."""

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of a key; None if the key is missing, or if read_errors() will raise an error."""
        failures = FAILURES.get()
        if failures:
            return None
        try:
            return await super().get(key, *arguments, **options)
        except Exception as error:  # noqa: BLE001 - tifffile raises almost any exception for damaged files
            failures.append(error)
            return None


class PatientStore(FsspecStore):
    """A Zarr store over an fsspec file system. It is read inside read_errors()."""

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of a key; None if the key is missing, or if read_errors() will raise an error."""
        failures = FAILURES.get()
        for pause in (*pauses(), None):
            if failures:
                return None
            try:
                return await super().get(key, *arguments, **options)
            except Exception as error:  # noqa: BLE001 - file systems of fsspec raise the errors of their own packages
                failure = failure_of(f"{self.path}/{key}", error)
                if pause is None or isinstance(failure, ImageError):
                    failures.append(failure)
                else:
                    await asyncio.sleep(pause)
        return None
