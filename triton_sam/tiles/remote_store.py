"""A Zarr folder at a URL, whose storage is asked again if it is away for a moment."""

from __future__ import annotations

import asyncio
from typing import Any

from zarr.storage import FsspecStore

from ..errors import ImageError
from ..inputs.remote import failure_of, pauses


class PatientStore(FsspecStore):
    """A store of Zarr over a file system of fsspec."""

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the bytes of a key; None if it is not there.

        Raises:
            ImageError: the key may not be read.
            DownloadError: the storage cannot be reached, even after several attempts.
        """
        for pause in (*pauses(), None):
            try:
                return await super().get(key, *arguments, **options)
            except Exception as error:  # file systems of fsspec raise the errors of their own packages
                failure = failure_of(f"{self.path}/{key}", error)
                if pause is None or isinstance(failure, ImageError):
                    raise failure from error
                await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")
