"""The interface between clients and transports.

Every client takes any object that implements it as ``transport=``. `Transport` connects to a Triton server,
`OnnxTransport` runs the models in this process, and tests pass objects that answer from a list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt

Tensors = Mapping[str, npt.NDArray[Any]]
"""Arrays by tensor name."""


class BaseTransport(Protocol):
    """Sends the requests of a client. Every method may be called from any thread."""

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        """Let all requests of this thread inside the block share one timeout, since the user sees them as one call."""
        ...

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference and return the named outputs; a failure is a ServerError."""
        ...

    def is_ready(self) -> bool:
        """Return whether the server answers and reports that it is ready. Never raises a ServerError."""
        ...

    def ready_models(self) -> Mapping[str, str]:
        """Return name -> version of every model that is ready."""
        ...

    def model_config(self, model: str) -> Mapping[str, Any]:
        """Return the configuration of a model, as the JSON of Triton's HTTP protocol."""
        ...

    def close(self) -> None:
        """Release connections and memory. Later calls raise an error."""
        ...
