"""A Zarr folder at a URL, whose storage is asked again if it is away for a moment."""

from __future__ import annotations

import asyncio
from typing import Any

from zarr.storage import FsspecStore

from ..errors import ImageError
from ..inputs.remote import failure_of, pauses
from .checked_reads import FAILURES


class PatientStore(FsspecStore):
    """A store of Zarr over a file system of fsspec. It is read inside read_errors()."""

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of a key; None if it is not there, or if read_errors() will raise an error."""
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
