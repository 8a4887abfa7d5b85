"""An image that a session model keeps on the server: what a client knows of it, and what it does not have here."""

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


@dataclass
class RemoteImage:
    """What a client knows of an image that a server holds.

    Args:
        content: encoded bytes, to send it again.
        image_id: the server's name for it.
        misses: clicks in a row that found the server without it.
    """

    content: bytes
    image_id: str
    misses: int = 0


class LazyTensors(Mapping[str, FloatArray]):
    """Embeddings that are fetched from the encoder when somebody looks at them, once."""

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


@dataclass(frozen=True, eq=False)
class SessionImage(ImageEmbeddings):
    """An image whose embeddings stay on the server. Looking at a tensor, or saving, fetches them from the encoder.

    Args:
        remote: the server's id of the image, and the bytes to send it again.
    """

    remote: RemoteImage

    def keep_id(self, outputs: Tensors) -> None:
        """Take over the id of an answer: another one after a restart with other weights."""
        self.remote.image_id = read_id(outputs)


def read_id(outputs: Tensors) -> str:
    """Return the id of the image that an answer is about."""
    return bytes(outputs[contract.IMAGE_ID][0]).decode()


def text(content: bytes) -> npt.NDArray[np.object_]:
    """Return bytes as a tensor of one text."""
    return np.array([content], np.object_)
