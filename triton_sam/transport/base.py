"""What a client needs of the way to a server: two protocols, one for each kind of client.

`SAM2TritonClient(..., transport=...)` and `SpeculativeSAM2Client(..., transport=...)` take any object that keeps them.
`Transport` and `AsyncTransport` reach a Triton server, `OnnxTransport` runs the models in this process, and tests pass
objects that answer from a list.
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
    """The way of `SAM2TritonClient` to its server. Every method may be called from any thread."""

    def one_call(self) -> contextlib.AbstractContextManager[None]:
        """Let all requests of this thread inside the block share one timeout: to the user they are one call."""
        ...

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference and return the named outputs; a failure is a ServerError."""
        ...

    def is_ready(self) -> bool:
        """Whether the server answers and says that it is ready. Raises no ServerError."""
        ...

    def ready_models(self) -> Mapping[str, str]:
        """Return name -> version of every model that is ready."""
        ...

    def model_config(self, model: str) -> Mapping[str, Any]:
        """Return the configuration of a model, as the JSON of Triton's HTTP protocol."""
        ...

    def close(self) -> None:
        """Free what the transport holds. Later calls raise."""
        ...


class AsyncBaseTransport(Protocol):
    """The way of `SpeculativeSAM2Client` to its server, used on one event loop alone.

    Cancelling a call has to end it on the wire, too.
    """

    async def in_time(self, call: Coroutine[Any, Any, Result], end: float | None = None) -> Result:
        """Wait for a call of the user, which may take several requests; a ServerTimeoutError when it takes too long.

        Args:
            call: to wait for; cancelled when it takes longer.
            end: of the monotonic clock; None: the timeout counts from now.
        """
        ...

    async def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference and return the named outputs; a failure is a ServerError."""
        ...

    async def close(self) -> None:
        """Free what the transport holds."""
        ...
