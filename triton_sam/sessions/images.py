"""Finds images in the cache by the hash of their file, or opens and encodes them, for all session models."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from .._common.lru import ByteLru
from ..errors import ConfigurationError, InferenceError
from ..families.base import FloatArray, Size
from ..inputs.formats import FORMATS
from ..inputs.images import open_image
from .messages import Reply
from .tasks import place_in

Result = TypeVar("Result")

PARALLEL_ENCODES = 2
"""Number of images opened and encoded concurrently: one is opened while the encoder processes another."""


@dataclass(frozen=True)
class HeldImage:
    """One encoded image.

    Args:
        image_size: width and height of the original image, pixels.
        tensors: the decoder's inputs by name; numpy arrays, or Triton tensors that may be on a GPU.
        nbytes: size in the cache; 0 for an image that is not cached.
    """

    image_id: str
    image_size: Size
    tensors: Mapping[str, Any]
    nbytes: int


class NoRoomError(InferenceError):
    """There is no memory left for the tensors of a call."""


Run = Callable[[str, Mapping[str, Any], Mapping[str, npt.NDArray[Any]], tuple[str, ...], bool], Mapping[str, Any]]
"""Runs a model. The arguments are its role, kept tensors, arrays, the names of the outputs, and whether to keep the
outputs as tensors for later calls; otherwise they are arrays. It may raise NoRoomError."""
Encode = Callable[[FloatArray], Mapping[str, Any]]
"""Runs an encoder on one image, and keeps its outputs; see Run."""


class ImageStore:
    """Finds or encodes images, from any number of threads. Equal files are encoded once.

    Args:
        limit: maximum size of the embeddings that it keeps, in bytes.
        prepare: turns an image into the input of the encoder.
        identity: text that identifies everything that affects the embeddings, except the image: the encoder, its
            weights, and how images are resized.
    """

    def __init__(
        self,
        encode: Encode,
        limit: int,
        prepare: Callable[[Image.Image], FloatArray],
        identity: str,
    ) -> None:
        if limit < 1:
            raise ConfigurationError(f"a cache of {limit} bytes cannot hold an image: set cache_bytes above 0")
        self.cache: ByteLru[str, HeldImage] = ByteLru(limit)
        self._encode = encode
        self._prepare = prepare
        self._identity = identity.encode()
        self._running: dict[str, Future[HeldImage]] = {}
        self._lock = threading.Lock()
        self._encoders = threading.BoundedSemaphore(PARALLEL_ENCODES)
        self._floors: dict[str, int] = {}
        """By step: bytes in the cache below which calls that run out of memory may not evict images."""

    def image_id(self, content: bytes) -> str:
        """Return the id of an image. Equal bytes have equal ids while the encoder does not change."""
        digest = blake2b(content, digest_size=16)
        digest.update(self._identity)
        return digest.hexdigest()

    def get(self, image_id: str, reply: Reply) -> HeldImage | None:
        """Return an image from the cache, or None, and count the hit or miss."""
        image = self.cache.get(image_id)
        reply.counts["cache_misses" if image is None else "cache_hits"] += 1
        return image

    def find(self, content: bytes, reply: Reply) -> HeldImage:
        """Return the image of a file from the cache, or encode it."""
        image_id = self.image_id(content)
        encode = partial(self.encode_file, content, self._encode, reply)
        return self.get(image_id, reply) or self.once(image_id, encode, reply)

    def once(self, key: str, encode: Callable[[], tuple[Size, Mapping[str, Any]]], reply: Reply) -> HeldImage:
        """Encode the image of a key that is not in the cache yet, put it there, and return it.

        If another thread is already encoding it, or has just stored it, ``encode`` is not called. All threads that wait
        for the same key get the same image, or the same error.

        Args:
            encode: returns the size of the image, and the tensors to keep.
        """
        with self._lock:
            running = self._running.get(key)
            mine = running or self._running.setdefault(key, Future())
        if running is not None:
            return running.result()
        try:
            image = self.cache.get(key) or self.put(key, *encode(), reply)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(image)
            return image
        finally:
            with self._lock:
                del self._running[key]

    def wait_for(self, key: str) -> None:
        """Wait until no other thread encodes the image of a key."""
        with self._lock:
            running = self._running.get(key)
        if running is not None:
            running.exception()

    def encode_part(self, part: Image.Image, reply: Reply) -> HeldImage:
        """Encode a part of an image, without caching it."""
        with place_in(self._encoders), reply.timed("encode"):
            pixels = self._prepare(part)
            embeddings = self.with_room("encode", partial(self._encode, pixels), reply)
        reply.counts["encodes"] += 1
        reply.counts["encode_seconds"] += reply.seconds["encode"]
        return HeldImage("", part.size, embeddings, 0)

    def gauges(self, reply: Reply | None = None) -> dict[str, float]:
        """Return the gauges of the cache by name; empty if the request of a reply did not change it."""
        if reply is not None and not any(reply.counts.get(name) for name in ("encodes", "finds", "cache_evictions")):
            return {}
        cache = self.cache
        return {"cache_limit_bytes": cache.limit, "cache_bytes": cache.nbytes, "cache_images": len(cache)}

    def with_room(self, step: str, call: Callable[[], Result], reply: Reply, keep: int = 0) -> Result:
        """Call a model. If memory runs out, evict images one by one and repeat.

        If that helps, the cache was too large, and its limit stays lower. Otherwise memory is short for another reason:
        the limit stays unchanged, and half of the images stay until a call of this step succeeds.

        Args:
            keep: bytes of images that are never evicted.
        """
        evicted = 0
        while True:
            try:
                result = call()
            except NoRoomError:
                floor = self._floors.setdefault(step, self.cache.nbytes // 2)
                evicted = self.cache.remove_oldest(keep=max(floor, keep))
                if not evicted:
                    raise
                reply.counts["cache_evictions"] += 1
            else:
                self._floors.pop(step, None)
                if evicted:
                    self.cache.lower_limit(evicted)
                return result

    def encode_file(self, content: bytes, encode: Encode, reply: Reply) -> tuple[Size, Mapping[str, Any]]:
        """Open and encode an image file, without caching it.

        Returns:
            Width and height of the image in pixels, and all outputs of the encoder.
        """
        with place_in(self._encoders):
            with reply.timed("open"):
                opened = open_image(content, FORMATS)
                pixels = self._prepare(opened)
            size = opened.size
            del opened
            with reply.timed("encode"):
                outputs = self.with_room("encode", partial(encode, pixels), reply)
        reply.counts["encodes"] += 1
        reply.counts["encode_seconds"] += reply.seconds["open"] + reply.seconds["encode"]
        return size, outputs

    def put(self, image_id: str, size: Size, tensors: Mapping[str, Any], reply: Reply) -> HeldImage:
        """Put an image into the cache, and return it. The least recently used images are evicted."""
        nbytes = sum(  # all Triton tensors are float32 in the wire contract
            each.nbytes if isinstance(each, np.ndarray) else 4 * math.prod(each.shape()) for each in tensors.values()
        )
        image = HeldImage(image_id, size, tensors, nbytes)
        if image.nbytes > self.cache.limit:
            raise ConfigurationError(
                f"the embeddings of one image take {image.nbytes} bytes, but cache_bytes is {self.cache.limit}"
            )
        reply.counts["cache_evictions"] += self.cache.put(image.image_id, image, image.nbytes)
        return image
