"""The interfaces between clients and transports: one Protocol class for each kind of client.

`SAM2TritonClient(..., transport=...)` and `SpeculativeSAM2Client(..., transport=...)` take any object that implements
them. `Transport` and `AsyncTransport` connect to a Triton server, `OnnxTransport` runs the models in this process, and
tests pass objects that answer from a list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

Tensors = Mapping[str, npt.NDArray[Any]]
"""Arrays by tensor name."""
Result = TypeVar("Result")


class BaseTransport(Protocol):
    """Sends the requests of a `SAM2TritonClient`. Every method may be called from any thread."""

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        """Let all requests of this thread inside the block share one timeout, since the user sees them as one call."""
        ...

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference and return the named outputs; a failure is a ServerError."""
        ...

    def is_ready(self) -> bool:
        """Return whether the server answers and reports that it is ready. Raises no ServerError."""
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


class AsyncBaseTransport(Protocol):
    """Sends the requests of a `SpeculativeSAM2Client`, which uses it on a single event loop.

    Cancelling a call must also end it on the wire.
    """

    async def in_time(self, call: Coroutine[Any, Any, Result], end: float | None = None) -> Result:
        """Wait for a call of the user, which may consist of several requests.

        Args:
            call: the coroutine to wait for; it is cancelled at the timeout.
            end: time of the monotonic clock, in seconds, at which the call must end; None: now plus the timeout.

        Raises:
            ServerTimeoutError: the call reached its timeout.
        """
        ...

    async def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference and return the named outputs; a failure is a ServerError."""
        ...

    async def model_config(self, model: str) -> Mapping[str, Any]:
        """Return the configuration of a model, as the JSON of Triton's HTTP protocol."""
        ...

    async def is_ready(self, model: str) -> bool:
        """Return whether the server answers and has a model ready. Raises no ServerError."""
        ...

    async def close(self) -> None:
        """Release connections and memory."""
        ...
