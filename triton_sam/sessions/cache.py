"""What the session model remembers: embeddings of the images used last, within a number of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .._common.lru import ByteLru
from ..errors import ConfigurationError
from ..families.base import Size

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True)
class HeldImage:
    """One encoded image.

    Args:
        image_id: its content hash.
        image_size: width and height of the original image, pixels.
        tensors: the decoder's inputs by name; numpy arrays, or tensors of Triton that may lie on a GPU.
        nbytes: size of all tensors, bytes.
    """

    image_id: str
    image_size: Size
    tensors: Mapping[str, Any]
    nbytes: int


class ImageCache:
    """Keeps the images used last, never more than ``limit`` bytes of embeddings. Safe in threads.

    Args:
        limit: bytes; shrink() lowers it.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ConfigurationError(f"a cache of {limit} bytes holds nothing")
        self._images: ByteLru[str, HeldImage] = ByteLru(limit)
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Bytes of embeddings that may be kept."""
        return self._images.limit

    @property
    def nbytes(self) -> int:
        """Bytes of embeddings that are kept now."""
        return self._images.nbytes

    def __len__(self) -> int:
        return len(self._images)

    def get(self, image_id: str) -> HeldImage | None:
        """Return an image, which makes it the one used last; None when it is not kept."""
        with self._lock:
            return self._images.get(image_id)

    def put(self, image: HeldImage) -> int:
        """Keep an image; those unused for longest make room first. Return how many had to go.

        Raises:
            ConfigurationError: it is larger than the whole cache.
        """
        if image.nbytes > self.limit:
            raise ConfigurationError(
                f"the embeddings of one image take {image.nbytes} bytes, cache_bytes is {self.limit}"
            )
        with self._lock:
            return self._images.put(image.image_id, image, image.nbytes)

    def shrink(self) -> int:
        """Let the image go that was unused for longest, and keep no more than the others from now on.

        Returns:
            How many went: 0 when none was left.
        """
        with self._lock:
            if not len(self._images):
                return 0
            gone = self._images.remove_oldest()
            self._images.limit = max(self._images.nbytes, gone)
            return 1


class SingleFlight(Generic[Key, Value]):
    """Runs a piece of work once for all threads that ask for it at the same time."""

    def __init__(self) -> None:
        self._flights: dict[Key, Future[Value]] = {}
        self._lock = threading.Lock()

    def run(self, key: Key, work: Callable[[], Value]) -> Value:
        """Return ``work()``, or the result (or error) of the thread that does the same work already."""
        with self._lock:
            flight = self._flights.get(key)
            mine = None if flight else self._flights.setdefault(key, Future())
        if mine is None:
            assert flight is not None  # noqa: S101 - for the type checker
            return flight.result()
        try:
            value = work()
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(value)
            return value
        finally:
            with self._lock:
                del self._flights[key]
