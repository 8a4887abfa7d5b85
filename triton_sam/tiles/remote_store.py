"""A Zarr folder at a URL, whose storage is asked again if it is away for a moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from zarr.storage import FsspecStore

from ..errors import ImageError, SamError
from ..inputs.remote import failure_of, pauses

_FAILURES: ContextVar[list[SamError]] = ContextVar("failures")
"""The failures of the read that a task is a part of."""


class PatientStore(FsspecStore):
    """A store of Zarr over a file system of fsspec. It is read inside checked()."""

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of a key; None if it is not there, or if checked() will raise an error."""
        failures = _FAILURES.get()
        for pause in (*pauses(), None):
            if failures:
                return None  # an error here would leave the other chunks of the read without a task that awaits them
            try:
                return await super().get(key, *arguments, **options)
            except Exception as error:  # noqa: BLE001 - file systems of fsspec raise the errors of their own packages
                failure = failure_of(f"{self.path}/{key}", error)
                if pause is None or isinstance(failure, ImageError):
                    failures.append(failure)
                else:
                    await asyncio.sleep(pause)
        return None


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """Read from a PatientStore.

    Raises:
        ImageError: a part may not be read.
        DownloadError: the storage cannot be reached, even after several attempts.
    """
    failures: list[SamError] = []
    token = _FAILURES.set(failures)
    try:
        yield
    except Exception as error:
        if failures:
            raise failures[0] from error
        raise
    finally:
        _FAILURES.reset(token)
    if failures:
        raise failures[0]


class RemoteArray:
    """An array of Zarr in a PatientStore.

    Args:
        array: the array.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def __getitem__(self, part: Any) -> Any:
        with checked():
            return self._array[part]
