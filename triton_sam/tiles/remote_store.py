"""A Zarr folder at a URL, with retries if the storage is briefly unavailable."""

from __future__ import annotations

import asyncio
from typing import Any

from zarr.storage import FsspecStore

from ..errors import ImageError
from ..inputs.remote import failure_of, pauses
from .checked_reads import FAILURES


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
