"""A transport that answers the requests to a session model in this process, with any other transport for its models.

So the client, and the same code that runs inside Triton, can be compared with the official code without a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from ..families.base import Family, FloatArray
from ..families.tables import DECODER, ENCODER
from ..sessions.cache import ImageCache
from ..sessions.image.session import SessionModel
from ..transport.base import BaseTransport, Tensors
from ..wire import contract
from ..wire.pair import ModelPair

Embeddings = Mapping[str, FloatArray]


class TransportPair:
    """Calls encoder and decoder over a transport: triton_sam.sessions.image.session.Models.

    Args:
        family: the family of the models.
        transport: reaches the models.
        variant: name of the models; None for the default ones.
        objects_at_a_time: maximum number of objects in one call of the decoder.
    """

    def __init__(
        self, family: Family, transport: BaseTransport, variant: str | None = None, objects_at_a_time: int = 1
    ) -> None:
        self.objects_at_a_time = objects_at_a_time
        self.decoded = 0
        """Number of objects that the decoder has decoded."""
        self._transport = transport
        self._family = family
        self._variant = variant

    def encode(self, inputs: Mapping[str, FloatArray]) -> Embeddings:
        """See sessions.image.session.Models."""
        name = self._family.model_name(ENCODER, self._variant)
        return self._transport.infer(name, inputs, self._family.encoder.output_names)

    def decode(
        self, embeddings: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]
    ) -> Embeddings:
        """See sessions.image.session.Models."""
        answer = self._transport.infer(
            self._family.model_name(DECODER, self._variant), {**embeddings, **inputs}, outputs
        )
        self.decoded += len(next(iter(answer.values())))
        return answer

    def nbytes(self, embeddings: Embeddings) -> int:
        """See sessions.images.Encoder."""
        return sum(array.nbytes for array in embeddings.values())


class SessionTransport:
    """A BaseTransport with a session model in this process. It passes all other requests on.

    Args:
        family: the family of the models.
        transport: reaches the models.
        variant: name of the models; None for the default ones.
        cache_bytes: embeddings that are kept, in bytes.
    """

    def __init__(
        self,
        family: Family,
        transport: BaseTransport,
        variant: str | None = None,
        cache_bytes: int = contract.DEFAULT_CACHE_BYTES,
    ) -> None:
        self.models = TransportPair(family, transport, variant)
        self._transport = transport
        self._pair = ModelPair(family, variant)
        self._model = SessionModel(self._pair, self.models, ImageCache(cache_bytes), _NoMetrics(), "this process")

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        """See BaseTransport."""
        return self._transport.one_call()

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Answer a request to the session model; see BaseTransport.infer.

        Raises:
            SamError: the request was refused, with the error that a client of a server would raise.
        """
        if model != self._pair.session_model:
            return self._transport.infer(model, inputs, outputs)
        reply = self._model.answer(inputs)
        if reply.error is not None:
            raise reply.error
        return {name: reply.tensors[name] for name in outputs if name in reply.tensors}

    def is_ready(self) -> bool:
        """See BaseTransport."""
        return self._transport.is_ready()

    def ready_models(self) -> Mapping[str, str]:
        """See BaseTransport."""
        return {**self._transport.ready_models(), self._pair.session_model: "1"}

    def model_config(self, model: str) -> Mapping[str, Any]:
        """See BaseTransport."""
        if model != self._pair.session_model:
            return self._transport.model_config(model)
        return {"input": [{"name": tensor.name} for tensor in contract.inputs(self._pair.family)]}

    def close(self) -> None:
        """See BaseTransport."""
        self._transport.close()


class _NoMetrics:
    """Discards metrics."""

    def add(self, name: str, value: float = 1.0) -> None:
        """See sessions.metrics.Metrics."""

    def set(self, name: str, value: float) -> None:
        """See sessions.metrics.Metrics."""
