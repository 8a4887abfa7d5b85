"""Answers a request of the session model: finds or encodes the image, decodes the prompt, writes the answer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import InferenceError, UnknownImageError
from ...families.base import FloatArray
from ...inputs.images import FORMATS, encoder_input, open_image
from ...inputs.prompts import Prompts
from ...wire.pair import ModelPair, Prediction
from ..cache import HeldImage, ImageCache, SingleFlight
from ..metrics import Metrics
from .answers import Tensors, write_image, write_json, write_json_error, write_masks
from .requests import SessionRequest, read_request, wants_json

Result = TypeVar("Result")

PARALLEL_ENCODES = 2
"""Number of images that are opened and encoded at a time: one is opened while the encoder processes another."""


class NoRoomError(InferenceError):
    """There is no memory left for the tensors of a call."""


class Models(Protocol):
    """Calls the encoder and the decoder. Both calls may raise NoRoomError."""

    @property
    def objects_at_a_time(self) -> int:
        """Maximum number of objects in one call of decode()."""

    def encode(self, inputs: Mapping[str, FloatArray]) -> Mapping[str, Any]:
        """Run the encoder; return its outputs by name, in the form that decode() accepts."""

    def decode(
        self, embeddings: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]
    ) -> Mapping[str, FloatArray]:
        """Run the decoder on embeddings from encode() and the tensors of a prompt."""

    def nbytes(self, embeddings: Mapping[str, Any]) -> int:
        """Return the size of embeddings in bytes."""


@dataclass
class Reply:
    """The answer to one request.

    Args:
        tensors: outputs by name; after an error only ``result_json``, if the request can read the error there.
        error: the error of the request, or None.
        counts: amounts to add to the counters, by the names in metrics.COUNTERS.
        seconds: duration of each step in seconds.
    """

    tensors: Tensors = field(default_factory=dict)
    error: Exception | None = None
    counts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Record the duration of a step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = time.perf_counter() - began


class SessionModel:
    """Answers requests, from any number of threads.

    Args:
        pair: the model pair.
        models: calls the encoder and the decoder.
        cache: keeps embeddings.
        metrics: receives the metrics.
        identity: text that identifies the encoder and its weights, on which the embeddings depend besides the image.
    """

    def __init__(self, pair: ModelPair, models: Models, cache: ImageCache, metrics: Metrics, identity: str) -> None:
        self.cache = cache
        self._pair = pair
        self._models = models
        self._metrics = metrics
        self._identity = identity.encode()
        self._flights: SingleFlight[str, HeldImage] = SingleFlight()
        self._encoders = threading.BoundedSemaphore(PARALLEL_ENCODES)
        self._floors: dict[str, int] = {}
        """Bytes in the cache below which calls that run out of memory may not evict images, by step."""
        metrics.set("cache_limit_bytes", cache.limit)

    def answer(self, tensors: Mapping[str, npt.NDArray[Any]]) -> Reply:
        """Answer one request. Errors become part of the reply."""
        reply = Reply()
        try:
            with reply.timed("total"):
                self._answer(read_request(tensors), reply)
        except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
            reply.counts["failures"] += 1
            reply.error = error.with_traceback(None)  # which refers to this reply, and to the image
            reply.tensors = write_json_error(error) if wants_json(tensors) else {}
        return reply

    def report(self, reply: Reply) -> None:
        """Add the counts of a reply to the metrics. Call this after answering: each metric is a call to the server."""
        for name, value in reply.counts.items():
            self._metrics.add(name, value)
        if reply.counts["encodes"] or reply.counts["cache_evictions"]:
            self._metrics.set("cache_limit_bytes", self.cache.limit)
            self._metrics.set("cache_bytes", self.cache.nbytes)
            self._metrics.set("cache_images", len(self.cache))

    def image_id(self, content: bytes) -> str:
        """Return the id of an image. Equal bytes have equal ids as long as the encoder does not change."""
        digest = blake2b(content, digest_size=16)
        digest.update(self._identity)
        return digest.hexdigest()

    def _answer(self, request: SessionRequest, reply: Reply) -> None:
        image = self._find(request, reply)
        reply.tensors = write_image(image)
        prediction = self._decode(image, request, reply) if request.has_prompt else None
        if request.as_json:
            with reply.timed("masks"):
                segments = self._pair.segments(prediction) if prediction else ()
                texts = write_json(image, segments, request, reply.seconds)
            reply.tensors |= texts
        elif prediction is not None:
            reply.tensors |= write_masks(self._pair, prediction, request)

    def _find(self, request: SessionRequest, reply: Reply) -> HeldImage:
        """Return the image of a request from the cache, or encode it.

        Raises:
            UnknownImageError: the id is unknown.
            ImageError: the content is not a usable image.
        """
        image_id = self.image_id(request.image) if request.image is not None else str(request.image_id)
        image = self.cache.get(image_id)
        reply.counts["cache_misses" if image is None else "cache_hits"] += 1
        if image is not None:
            return image
        content = request.image
        if content is None:
            raise UnknownImageError(f"no image {image_id[:64]!r} here (any more): send the image again")
        return self._flights.run(image_id, lambda: self._encode(image_id, content, reply))

    def _encode(self, image_id: str, content: bytes, reply: Reply) -> HeldImage:
        landed = self.cache.get(image_id)  # stored by another thread after this request looked for it
        if landed is not None:
            return landed
        with self._encoders:
            with reply.timed("open"):
                opened = open_image(content, FORMATS)
                (spec,) = self._pair.family.encoder.inputs
                pixels = encoder_input(opened, self._pair.family)
            size = opened.size
            del opened
            with reply.timed("encode"):
                embeddings = self._with_room("encode", lambda: self._models.encode({spec.name: pixels}), reply)
        image = HeldImage(image_id, size, self._pair.family.embeddings(embeddings), self._models.nbytes(embeddings))
        reply.counts["cache_evictions"] += self.cache.put(image)
        reply.counts.update(encodes=1, encode_seconds=reply.seconds["open"] + reply.seconds["encode"])
        return image

    def _with_room(self, step: str, call: Callable[[], Result], reply: Reply, keep: int = 0) -> Result:
        """Call a model. If memory runs out, evict images one by one and repeat.

        If that helps, the cache was too large, and its limit stays lower. If it does not help, memory lacks for another
        reason: the limit stays as it was, and so does half of the images, until a call of this step succeeds.

        Args:
            step: name of the call.
            call: calls the model.
            reply: counts the evictions.
            keep: bytes of images that stay in any case.

        Raises:
            NoRoomError: memory still lacks.
        """
        evicted = 0
        while True:
            try:
                result = call()
            except NoRoomError:
                floor = self._floors.setdefault(step, self.cache.nbytes // 2)
                evicted = self.cache.evict_oldest(max(floor, keep))
                if not evicted:
                    raise
                reply.counts["cache_evictions"] += 1
            else:
                self._floors.pop(step, None)
                if evicted:
                    self.cache.lower_limit(evicted)
                return result

    def _decode(self, image: HeldImage, request: SessionRequest, reply: Reply) -> Prediction:
        family = self._pair.family
        prompts = request.prompts(image.image_size, family.mask_size)
        # A single object needs no padding, which this decoder would not mask out.
        alone = prompts.has_padding and not family.masks_out_padding
        with reply.timed("decode"):
            parts = prompts.parts(1 if alone else self._models.objects_at_a_time)
            answers = [each for part in parts for each in self._decode_part(image, part, request, reply)]
        reply.counts.update(decodes=1, decode_seconds=reply.seconds["decode"])
        if len(answers) == 1:
            return answers[0]
        logits, scores = (np.concatenate([getattr(each, name) for each in answers]) for name in ("logits", "scores"))
        return Prediction(logits, scores, prompts)

    def _decode_part(self, image: HeldImage, part: Prompts, request: SessionRequest, reply: Reply) -> list[Prediction]:
        """Decode some objects in one call, or in several calls if the memory does not suffice for one.

        This is a method because a function that calls itself would keep the memory of the image until Python looks for
        circular references.
        """
        if len(part) == 1:  # evicting the image of this request would free nothing
            return [self._with_room("decode", lambda: self._call_decoder(image, part, request), reply, image.nbytes)]
        with contextlib.suppress(NoRoomError):
            return [self._call_decoder(image, part, request)]
        # Fewer objects take less memory, and no image has to go.
        halves = part.parts((len(part) + 1) // 2)
        return [each for half in halves for each in self._decode_part(image, half, request, reply)]

    def _call_decoder(self, image: HeldImage, part: Prompts, request: SessionRequest) -> Prediction:
        family = self._pair.family
        wanted = tuple(family.requested_outputs(request.multimask_output))
        masks = self._models.decode(image.tensors, part.tensors(family), wanted)
        return self._pair.read_masks(masks, part, request.multimask_output)
