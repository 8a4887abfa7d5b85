"""A video model in this process: the code of the server's video model, with ONNX Runtime instead of Triton."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigurationError, ModelNotReadyError
from ..families.base import Family, FloatArray
from ..families.tables import ENCODER
from ..families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from ..sessions.cache import ImageCache
from ..sessions.video.calls import attention_inputs, decoder_inputs, memory_inputs, read_decoded
from ..sessions.video.model import Settings, VideoModel
from ..sessions.video.models import Decoded, DecoderPrompt, Embeddings, Memories
from ..transport.base import Tensors
from ..transport.onnx import OnnxTransport
from ..wire import video as wire

_OBJECTS_AT_A_TIME = 8
_CACHE_BYTES = 512 << 20


class OnnxTrackingModels:
    """Calls the models of a tracker with ONNX Runtime in this process; see sessions.video.models.TrackingModels.

    Args:
        family: the family at the size of its encoder's image.
        transport: runs the models, whose names are their roles.

    Raises:
        ConfigurationError: the family has no tracker.
    """

    objects_at_a_time = _OBJECTS_AT_A_TIME

    def __init__(self, family: Family, transport: OnnxTransport) -> None:
        if family.tracking is None:
            raise ConfigurationError(f"{family.name} has no models for videos")
        self._specs = {ENCODER: family.encoder, **family.tracking.models}
        self._transport = transport

    def encode(self, inputs: Mapping[str, FloatArray]) -> Embeddings:
        """See TrackingModels.encode."""
        return self._run(ENCODER, {}, inputs)

    def nbytes(self, embeddings: Embeddings) -> int:
        """See TrackingModels.nbytes."""
        return sum(array.nbytes for array in embeddings.values())

    def attend(self, frame: Embeddings, memories: Memories) -> Any:
        """See TrackingModels.attend."""
        (conditioned,) = self._run(MEMORY_ATTENTION, *attention_inputs(frame, memories)).values()
        return conditioned

    def decode(self, frame: Embeddings, conditioned: Any | None, prompt: DecoderPrompt) -> Decoded:
        """See TrackingModels.decode."""
        return read_decoded(self._run(TRACKING_DECODER, *decoder_inputs(frame, conditioned, prompt)))

    def remember(self, frame: Embeddings, masks: FloatArray, scores: FloatArray, is_prompted: bool) -> FloatArray:
        """See TrackingModels.remember."""
        answer: dict[str, FloatArray] = self._run(MEMORY_ENCODER, *memory_inputs(frame, masks, scores, is_prompted))
        (memory,) = answer.values()
        return memory

    def prompt_mask(self, mask: FloatArray) -> tuple[FloatArray, FloatArray]:
        """See TrackingModels.prompt_mask."""
        answer = self._run(MASK_PROMPT, {}, {"mask": mask})
        return answer["mask_input"], answer["masks"]

    def _run(self, role: str, held: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        return self._transport.infer(role, {**held, **arrays}, self._specs[role].output_names)


class NoMetrics:
    """Drops the metrics; see sessions.metrics.Metrics."""

    def add(self, name: str, value: float = 1.0) -> None:
        """Do nothing."""

    def set(self, name: str, value: float) -> None:
        """Do nothing."""


class VideoTransport:
    """A BaseTransport that answers the requests of a video client in this process.

    Args:
        family: the family at the size of its encoder's image.
        files: ONNX files by role: the encoder, and the models of the tracker.
        variant: name of the model pair; None for the family's name.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
        ExportError: ONNX Runtime cannot load a file.
        ConfigurationError: the family has no tracker.
    """

    def __init__(self, family: Family, files: Mapping[str, Path], variant: str | None = None) -> None:
        self._models = OnnxTransport(files)
        self._name = wire.video_model(family, variant)
        self._workers, self._prefetchers = ThreadPoolExecutor(1, "video"), ThreadPoolExecutor(1, "ahead")
        self._model = VideoModel(
            family,
            OnnxTrackingModels(family, self._models),
            ImageCache(_CACHE_BYTES),
            NoMetrics(),
            "in process",
            Settings(),
            self._workers,
            self._prefetchers,
        )

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: without a network there is no timeout. See BaseTransport.one_call."""
        return contextlib.nullcontext()

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Answer one request; see BaseTransport.infer. An error of the video model is raised as it is."""
        if model != self._name:
            raise ModelNotReadyError(f"there is no model {model} in this process")
        tensors = {name: np.asarray(array) for name, array in inputs.items()}
        reply = self._model.answer(tensors, wants_snapshot=wire.SNAPSHOT in outputs)
        if reply.error is not None:
            raise reply.error
        return {name: reply.tensors[name] for name in outputs if name in reply.tensors}

    def is_ready(self) -> bool:
        """Return whether models are loaded, which is the case until close()."""
        return self._models.is_ready()

    def ready_models(self) -> dict[str, str]:
        """Return name -> version of the video model."""
        return {self._name: "1"} if self._models.is_ready() else {}

    def model_config(self, model: str) -> dict[str, Any]:  # noqa: ARG002 - the interface has it
        """Return an empty configuration: video clients do not ask for it."""
        return {}

    def close(self) -> None:
        """Forget the models."""
        for threads in (self._workers, self._prefetchers):
            threads.shutdown()
        self._models.close()
