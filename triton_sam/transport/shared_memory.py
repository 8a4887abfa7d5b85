"""A transport to a server on this machine that reads large inputs from system shared memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ServerError
from ..families.base import FloatArray
from .protocols import SharedTensor
from .triton import Transport
from .url import ServerUrl


class SharedMemoryTransport(Transport):
    """Copies arrays into shared memory once. Requests then refer to that memory instead of sending the bytes.

    Args:
        url: see Transport, also for the options that are not listed here.
        held: float32 arrays by tensor name. Every input with such a name is read from shared memory.
        region: name of the region; it must be unique on this machine.

    Raises:
        ServerError: the server does not support shared memory or is on another machine, or this machine has too little
            shared memory.
    """

    def __init__(
        self,
        url: ServerUrl,
        held: Mapping[str, FloatArray],
        *,
        region: str,
        timeout: float = 60.0,
        retries: int = 2,
        headers: Mapping[str, str] | None = None,
        ca_certs: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(url, timeout=timeout, retries=retries, headers=headers, ca_certs=ca_certs)
        self._region = region
        arrays = {name: np.ascontiguousarray(array) for name, array in held.items()}
        ends = np.cumsum([array.nbytes for array in arrays.values()]).tolist()
        self._places = {name: end - array.nbytes for (name, array), end in zip(arrays.items(), ends, strict=True)}
        with contextlib.ExitStack() as stack:
            stack.callback(super().close)
            size = stack.enter_context(_shared(region, list(arrays.values())))
            self._register(size)
            stack.callback(self._unregister)
            self._held = stack.pop_all()

    def close(self) -> None:
        """Unregister the region from the server, remove it, and close all connections."""
        self._held.close()

    def _input(self, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any] | SharedTensor:
        if name not in self._places:
            return super()._input(name, array)
        return SharedTensor(self._region, self._places[name], array)

    def _register(self, size: int) -> None:
        key = f"/{self._region}"
        self._call(lambda call: self._client.share_memory(self._region, key, size, call), None, retries=0)

    def _unregister(self) -> None:
        with contextlib.suppress(ServerError):  # the server may have stopped
            self._call(lambda call: self._client.forget_memory(self._region, call), None, retries=0)


@contextlib.contextmanager
def _shared(name: str, arrays: list[FloatArray]) -> Iterator[int]:
    """Keep arrays one after another in a region of shared memory; yield the size of the region in bytes."""
    import tritonclient.utils.shared_memory as regions

    size = sum(array.nbytes for array in arrays)
    region = None
    try:
        region = regions.create_shared_memory_region(name, f"/{name}", size)
        regions.set_shared_memory_region(region, arrays)
        yield size
    except regions.SharedMemoryException as error:
        raise ServerError(f"this machine has no {size / 1e6:.0f} MB of shared memory left: {error}") from error
    finally:
        if region is not None:
            with contextlib.suppress(Exception):  # another program has removed it
                regions.destroy_shared_memory_region(region)
