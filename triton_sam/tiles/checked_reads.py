"""Reads of Zarr arrays whose stores note their failures, so that a failure leaves no part of the read behind.

zarr reads the chunks of a part in tasks. If one of them raises an error, nobody awaits the others, and asyncio
complains of each when the program ends. So the stores here return nothing in place of an error, and read_errors()
raises it. An error of a codec, which decompresses chunks, still leaves such tasks behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from zarr.storage import WrapperStore

FAILURES: ContextVar[list[Exception]] = ContextVar("failures")
"""The failures of the read that a task is a part of."""


@contextlib.contextmanager
def read_errors() -> Iterator[None]:
    """Read from a store that notes its failures."""
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
    """An array of Zarr in a store that notes its failures."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def __getitem__(self, part: Any) -> Any:
        with read_errors():
            return self._array[part]


class NotingStore(WrapperStore[Any]):
    """Another store, whose failures it notes. It is read inside read_errors()."""

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of a key; None if it is not there, or if read_errors() will raise an error."""
        failures = FAILURES.get()
        if failures:
            return None
        try:
            return await super().get(key, *arguments, **options)
        except Exception as error:  # noqa: BLE001 - tifffile raises almost any exception for damaged files
            failures.append(error)
            return None
