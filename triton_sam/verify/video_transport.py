"""A transport that answers the requests to a video model in this process, with any other transport for its models.

So the client for videos, and the same code that runs inside Triton, can be compared with the official predictor
without a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy.typing as npt

from ..errors import ConfigurationError
from ..families.base import Family, FloatArray
from ..families.tables import ENCODER
from ..families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from ..sessions.cache import ImageCache
from ..sessions.video.calls import attention_inputs, decoder_inputs, memory_inputs, read_decoded
from ..sessions.video.model import Settings, VideoModel
from ..sessions.video.models import Decoded, DecoderPrompt, Embeddings, Memories
from ..transport.base import BaseTransport, Tensors
from ..wire import video


class TransportModels:
    """Calls the models of a tracker over a transport: triton_sam.sessions.video.models.TrackingModels.

    Args:
        family: the family at the size of its encoder's image.
        transport: reaches the models.
        variant: name of the models; None for the default ones.
        objects_at_a_time: maximum number of objects in one call.

    Raises:
        ConfigurationError: the family has no models for videos.
    """

    def __init__(
        self,
        family: Family,
        transport: BaseTransport,
        variant: str | None = None,
        objects_at_a_time: int = video.DEFAULT_OBJECTS_AT_A_TIME,
    ) -> None:
        if family.tracking is None:
            raise ConfigurationError(f"{family.name} has no models for videos")
        self.objects_at_a_time = objects_at_a_time
        self._transport = transport
        self._names = {role: family.model_name(role, variant) for role in (ENCODER, *family.tracking.models)}
        self._outputs = {role: spec.output_names for role, spec in family.tracking.models.items()}
        self._outputs[ENCODER] = family.encoder.output_names

    def encode(self, inputs: Mapping[str, FloatArray]) -> Embeddings:
        """See TrackingModels."""
        return self._run(ENCODER, {}, inputs)

    def nbytes(self, embeddings: Embeddings) -> int:
        """See TrackingModels."""
        return sum(array.nbytes for array in embeddings.values())

    def attend(self, frame: Embeddings, memories: Memories) -> Any:
        """See TrackingModels."""
        (conditioned,) = self._run(MEMORY_ATTENTION, *attention_inputs(frame, memories)).values()
        return conditioned

    def decode(self, frame: Embeddings, conditioned: Any | None, prompt: DecoderPrompt) -> Decoded:
        """See TrackingModels."""
        return read_decoded(self._run(TRACKING_DECODER, *decoder_inputs(frame, conditioned, prompt)))

    def remember(self, frame: Embeddings, masks: FloatArray, scores: FloatArray, is_prompted: bool) -> FloatArray:
        """See TrackingModels."""
        (memory,) = self._run(MEMORY_ENCODER, *memory_inputs(frame, masks, scores, is_prompted)).values()
        return memory

    def prompt_mask(self, mask: FloatArray) -> tuple[FloatArray, FloatArray]:
        """See TrackingModels."""
        answer = self._run(MASK_PROMPT, {}, {"mask": mask})
        return answer["mask_input"], answer["masks"]

    def _run(self, role: str, held: Embeddings, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, FloatArray]:
        return self._transport.infer(self._names[role], {**held, **arrays}, self._outputs[role])


class VideoTransport:
    """A BaseTransport with a video model in this process. It passes all other requests on.

    Args:
        family: the family at the size of its encoder's image.
        transport: reaches the models.
        variant: name of the models; None for the default ones.
        cache_bytes: embeddings that are kept, in bytes.
        settings: the limits of sessions.

    Raises:
        ConfigurationError: the family has no models for videos.
    """

    def __init__(
        self,
        family: Family,
        transport: BaseTransport,
        variant: str | None = None,
        cache_bytes: int = video.DEFAULT_CACHE_BYTES,
        settings: Settings | None = None,
    ) -> None:
        self._transport = transport
        self._name = video.video_model(family, variant)
        self._threads = ThreadPoolExecutor(1, "video")
        self._model = VideoModel(
            family,
            TransportModels(family, transport, variant),
            ImageCache(cache_bytes),
            _NoMetrics(),
            "this process",
            settings or Settings(),
            self._threads,
        )

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        """See BaseTransport."""
        return self._transport.one_call()

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Answer a request to the video model; see BaseTransport.infer.

        Raises:
            SamError: the request was refused, with the error that a client of a server would raise.
        """
        if model != self._name:
            return self._transport.infer(model, inputs, outputs)
        reply = self._model.answer(inputs, wants_snapshot=video.SNAPSHOT in outputs)
        if reply.error is not None:
            raise reply.error
        return {name: reply.tensors[name] for name in outputs if name in reply.tensors}

    def is_ready(self) -> bool:
        """See BaseTransport."""
        return self._transport.is_ready()

    def ready_models(self) -> Mapping[str, str]:
        """See BaseTransport."""
        return {**self._transport.ready_models(), self._name: "1"}

    def model_config(self, model: str) -> Mapping[str, Any]:
        """See BaseTransport."""
        if model != self._name:
            return self._transport.model_config(model)
        return {"input": [{"name": tensor.name} for tensor in video.inputs()]}

    def close(self) -> None:
        """See BaseTransport."""
        self._threads.shutdown()
        self._transport.close()


class _NoMetrics:
    """Discards metrics."""

    def add(self, name: str, value: float = 1.0) -> None:
        """See sessions.metrics.Metrics."""

    def set(self, name: str, value: float) -> None:
        """See sessions.metrics.Metrics."""
