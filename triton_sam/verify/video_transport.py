"""A transport with a video model in this process, which uses another transport for its models.

It lets `verify` compare the client for videos and the code inside Triton with the official predictor, without a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy.typing as npt

from ..families.base import Family
from ..sessions.concepts import Concepts
from ..sessions.video.model import VideoModel, VideoModelSettings
from ..sessions.video.models import TrackingModels
from ..transport.base import BaseTransport, Tensors
from ..wire import video


class VideoTransport:
    """A BaseTransport with a video model in this process. It forwards all other requests.

    Args:
        family: the family at the size of its encoder's image.
        transport: the transport to its default models.
        concepts: the settings of searches for words; None without models for them.

    Raises:
        ConfigurationError: the family has no models for videos.
    """

    def __init__(self, family: Family, transport: BaseTransport, concepts: Concepts | None = None) -> None:
        self._transport = transport
        self._names = {role: family.model_name(role) for role in family.every_model}
        self._name = video.video_model(family)
        self._threads = ThreadPoolExecutor(1, "video")
        self._model = VideoModel(
            family,
            TrackingModels(family, self._run, video.DEFAULT_OBJECTS_AT_A_TIME),
            video.DEFAULT_CACHE_BYTES,
            "this process",
            VideoModelSettings(),
            self._threads,
            concepts,
        )

    def one_call(self) -> contextlib.AbstractContextManager[None]:
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

    def _run(
        self,
        role: str,
        held: Tensors,
        arrays: Tensors,
        outputs: tuple[str, ...],
        is_kept: bool,  # noqa: ARG002 - kept outputs are arrays here
    ) -> Tensors:
        return self._transport.infer(self._names[role], {**held, **arrays}, outputs)

    def is_ready(self) -> bool:
        return self._transport.is_ready()

    def ready_models(self) -> Mapping[str, str]:
        return {**self._transport.ready_models(), self._name: "1"}

    def model_config(self, model: str) -> Mapping[str, Any]:
        if model != self._name:
            return self._transport.model_config(model)
        return {"input": [{"name": tensor.name} for tensor in video.inputs()]}

    def close(self) -> None:
        self._threads.shutdown()
        self._transport.close()
