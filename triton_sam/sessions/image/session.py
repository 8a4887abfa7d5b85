"""Answers a request of the session model: finds or encodes the image, decodes the prompt, writes the answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError, UnknownImageError
from ...everything.search import see
from ...families.base import FloatArray
from ...families.tables import DECODER, ENCODER
from ...inputs.images import encoder_input
from ...inputs.prompts import Prompts
from ...wire.pair import ModelPair, Prediction
from ..concepts import Concepts, ConceptSearch
from ..images import HeldImage, ImageStore, NoRoomError, Run
from ..messages import Reply, Tensors
from ..tasks import TaskCancelledError
from . import concepts as concept_requests
from .everything import (
    JobNetworks,
    Turns,
    find_everything,
    read_job,
    read_part,
    write_found,
)
from .messages import SessionRequest, read_request, wants_json, write_image, write_json, write_json_error, write_masks


class SessionModel:
    """Answers requests, from any number of threads.

    Args:
        run: runs the encoder, the decoder and the models of concepts.
        objects_at_a_time: maximum number of objects in one call of the decoder.
        identity: text that identifies the encoder and its weights, on which the embeddings depend.
        concepts: the settings of searches for concepts; None if the family has no models for them.
        thresholds: defaults for searches for all objects; missing ones are those of the family's official generator.
    """

    def __init__(
        self,
        pair: ModelPair,
        run: Run,
        objects_at_a_time: int,
        cache_bytes: int,
        identity: str,
        concepts: Concepts | None = None,
        thresholds: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._pair = pair
        self._run = run
        self._objects_at_a_time = objects_at_a_time
        self._thresholds = thresholds
        self._turns = Turns()
        prepare = partial(encoder_input, family=pair.family)
        self.images = ImageStore(self._encode, cache_bytes, prepare, identity)
        self._concepts = None
        if concepts is not None:
            self._concepts = ConceptSearch(pair.family, run, concepts, self.images, self._turns.job)

    def answer(self, tensors: Mapping[str, npt.NDArray[Any]]) -> Reply:
        """Answer one request. Errors become part of the reply."""
        reply = Reply()
        try:
            request = read_request(tensors)
            image = self._find(request, reply)
            reply.tensors = write_image(image)
            prediction = None
            if request.has_prompt:
                with self._turns.click():
                    prediction = self._decode(image, request, reply)
            if request.as_json:
                with reply.timed("masks"):
                    segments = self._pair.segments(prediction, request.cleanup) if prediction else ()
                    texts = write_json(image, segments, request, reply.seconds)
                reply.tensors |= texts
            elif prediction is not None:
                reply.tensors |= write_masks(self._pair, prediction, request)
        except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
            return reply.fail(error, write_json_error(error) if wants_json(tensors) else None)
        return reply

    def find_everything(self, tensors: Mapping[str, npt.NDArray[Any]], stopped: Callable[[], bool]) -> Reply:
        """Answer one request for all objects of an image. Errors become part of the reply."""

        def work(reply: Reply) -> Tensors:
            content, parameters = read_job(tensors, self._pair.family.name, self._thresholds)
            networks = self._job_networks(reply, stopped)
            return write_found(find_everything(content, parameters, self._pair.family, networks))

        return _as_job(work, stopped)

    def find_part(self, tensors: Mapping[str, npt.NDArray[Any]], stopped: Callable[[], bool]) -> Reply:
        """Answer one request for the objects under some points. Errors become part of the reply."""

        def work(reply: Reply) -> Tensors:
            asked = read_part(tensors, self._pair.family.name, self._thresholds)
            image = self._find(asked.image, reply)
            seen = see(asked.part(image), self._pair.family, self._job_networks(reply, stopped).decode)
            return {**write_image(image), **write_found(seen)}

        return _as_job(work, stopped)

    def find_concepts(self, tensors: Mapping[str, npt.NDArray[Any]], stopped: Callable[[], bool]) -> Reply:
        """Answer one request for all instances of concepts. Errors become part of the reply."""

        def work(reply: Reply) -> Tensors:
            if self._concepts is None:
                raise InputError(f"{self._pair.family.name} cannot search words: use a SAM3 model")
            return concept_requests.answer(self._concepts, tensors, reply, stopped)

        return _as_job(work, stopped)

    def _find(self, request: SessionRequest, reply: Reply) -> HeldImage:
        """Return the image of a request from the cache, or encode it."""
        if request.image is not None:
            find = self.images.find if self._concepts is None else self._concepts.encode_for_clicks
            return find(request.image, reply)
        image_id = str(request.image_id)
        image = self.images.get(image_id, reply)
        if image is None:
            reply.counts["unknown_images"] += 1
            raise UnknownImageError(f"unknown or expired image {image_id[:64]!r}: send it again")
        return image

    def _job_networks(self, reply: Reply, stopped: Callable[[], bool]) -> JobNetworks:
        def predict(image: HeldImage, request: SessionRequest) -> tuple[FloatArray, FloatArray]:
            prediction = self._decode(image, request, reply)
            return prediction.logits, prediction.scores

        return JobNetworks(self.images, self._turns, self._objects_at_a_time, predict, reply, stopped)

    def _encode(self, pixels: FloatArray) -> Mapping[str, Any]:
        encoder = self._pair.family.encoder
        return self._run(ENCODER, {}, {encoder.input_names[0]: pixels}, encoder.output_names, True)

    def _decode(self, image: HeldImage, request: SessionRequest, reply: Reply) -> Prediction:
        family = self._pair.family
        prompts = request.prompts(image.image_size, family.mask_size)
        parts = [prompts]
        if len(prompts) > 1:
            # One object per call needs no padding, which this decoder would not mask out.
            alone = prompts.has_padding and not family.masks_out_padding
            parts = prompts.fitting_parts(1 if alone else self._objects_at_a_time)
        with reply.timed("decode"):
            answers = [each for part in parts for each in self._decode_part(image, part, request, reply)]
        reply.counts["decodes"] += 1
        reply.counts["decode_seconds"] += reply.seconds["decode"]
        if len(answers) == 1:
            return answers[0]
        logits, scores = (np.concatenate([getattr(each, name) for each in answers]) for name in ("logits", "scores"))
        return Prediction(logits, scores, prompts)

    def _decode_part(self, image: HeldImage, part: Prompts, request: SessionRequest, reply: Reply) -> list[Prediction]:
        """Decode some objects in one call, or in several calls if memory does not suffice for one.

        This is a method because a recursive inner function would keep the image in memory until Python collects
        circular references.
        """
        if len(part) == 1:  # evicting the image of this request would free nothing
            call = partial(self._call_decoder, image, part, request)
            return [self.images.with_room("decode", call, reply, image.nbytes)]
        with contextlib.suppress(NoRoomError):
            return [self._call_decoder(image, part, request)]
        # Fewer objects take less memory, without evicting images.
        halves = part.parts((len(part) + 1) // 2)
        return [each for half in halves for each in self._decode_part(image, half, request, reply)]

    def _call_decoder(self, image: HeldImage, part: Prompts, request: SessionRequest) -> Prediction:
        family = self._pair.family
        wanted = tuple(family.requested_outputs(request.multimask_output))
        masks = self._run(DECODER, image.tensors, part.tensors(family), wanted, False)
        return self._pair.read_masks(masks, part, request.multimask_output)


def _as_job(work: Callable[[Reply], Tensors], stopped: Callable[[], bool]) -> Reply:
    """Return the reply of a job. Errors become part of it, except TaskCancelledError."""
    reply = Reply()
    try:
        if stopped():  # before the image is encoded
            raise TaskCancelledError
        reply.tensors = work(reply)
    except TaskCancelledError as end:
        end.reply = reply
        raise
    except Exception as error:  # noqa: BLE001 - one failure must not affect other requests
        reply.fail(error)
    return reply
