"""The client's handle of an image whose embeddings the session model keeps on the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..families.base import FloatArray
from ..inputs.embeddings import ImageEmbeddings
from ..transport.base import Tensors
from ..wire import contract


@dataclass(repr=False)
class RemoteImage:
    """The data that a client keeps about an image on the server.

    Args:
        content: the encoded image file, to send it again if the server loses it.
        image_id: the id that the server gave it.
        misses: number of successive clicks for which the server did not have it.
    """

    content: bytes
    image_id: str
    misses: int = 0

    def __repr__(self) -> str:
        return f"RemoteImage({self.image_id}, {len(self.content)} bytes)"


class LazyTensors(Mapping[str, FloatArray]):
    """Embeddings that are fetched from the encoder when a caller first reads one of them."""

    def __init__(self, names: tuple[str, ...], fetch: Callable[[], ImageEmbeddings]) -> None:
        self._names = names
        self._fetch = fetch
        self._fetched: ImageEmbeddings | None = None
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> FloatArray:
        if name not in self._names:
            raise KeyError(name)
        with self._lock:
            if self._fetched is None:
                self._fetched = self._fetch()
        return self._fetched[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, eq=False, repr=False)
class SessionImage(ImageEmbeddings):
    """An image whose embeddings stay on the server. Reading a tensor, or saving, fetches them from the encoder.

    Args:
        remote: the server's id of the image, and the image file to send it again.
    """

    remote: RemoteImage

    def keep_id(self, outputs: Tensors) -> None:
        """Store the id from an answer. It changes when the server restarts with other weights."""
        self.remote.image_id = read_id(outputs)


def read_id(outputs: Tensors) -> str:
    """Return the image id that an answer contains."""
    return bytes(outputs[contract.IMAGE_ID][0]).decode()


def text(content: bytes) -> npt.NDArray[np.object_]:
    """Return bytes as a BYTES tensor of shape (1,)."""
    return np.array([content], np.object_)
