"""The cache of the session model: embeddings of the most recently used images, limited in bytes."""

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
    """Keeps the most recently used images, at most ``limit`` bytes of embeddings. Thread-safe.

    Args:
        limit: maximum size in bytes; lower_limit() lowers it.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ConfigurationError(f"a cache of {limit} bytes cannot hold an image: set cache_bytes above 0")
        self._images: ByteLru[str, HeldImage] = ByteLru(limit)
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Maximum number of bytes of embeddings."""
        return self._images.limit

    @property
    def nbytes(self) -> int:
        """Current number of bytes of embeddings."""
        return self._images.nbytes

    def __len__(self) -> int:
        return len(self._images)

    def get(self, image_id: str) -> HeldImage | None:
        """Return an image and mark it as the most recently used; None if it is not in the cache."""
        with self._lock:
            return self._images.get(image_id)

    def put(self, image: HeldImage) -> int:
        """Add an image, after evicting the least recently used ones if needed. Return the number of evicted images.

        Raises:
            ConfigurationError: the image is larger than the whole cache.
        """
        if image.nbytes > self.limit:
            raise ConfigurationError(
                f"the embeddings of one image take {image.nbytes} bytes, but cache_bytes is {self.limit}"
            )
        with self._lock:
            return self._images.put(image.image_id, image, image.nbytes)

    def evict_oldest(self, keep: int = 0) -> int:
        """Evict the least recently used image, unless the cache holds at most ``keep`` bytes.

        Returns:
            The size of the evicted image in bytes; 0 if none was evicted.
        """
        with self._lock:
            return self._images.remove_oldest() if self._images.nbytes > keep else 0

    def lower_limit(self, least: int) -> None:
        """Lower the limit to the current size, but not below ``least`` bytes. It never rises."""
        with self._lock:
            self._images.limit = min(self._images.limit, max(self._images.nbytes, least))


class SingleFlight(Generic[Key, Value]):
    """Runs work once for all threads that request it at the same time."""

    def __init__(self) -> None:
        self._flights: dict[Key, Future[Value]] = {}
        self._lock = threading.Lock()

    def run(self, key: Key, work: Callable[[], Value]) -> Value:
        """Return ``work()``, or the result (or error) of the thread that already does the work of this key."""
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
