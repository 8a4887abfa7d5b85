"""The interface that the clients of both protocols, HTTP and gRPC, offer to a transport."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from .base import Tensors
from .timed_sockets import Call


@dataclass(frozen=True)
class SharedTensor:
    """An input that the server reads from system shared memory.

    Args:
        region: name of the region, which is already registered with the server.
        offset: bytes from the start of the region to the tensor.
        array: the same tensor in this process, for its shape and type.
    """

    region: str
    offset: int
    array: npt.NDArray[Any]


Inputs = Mapping[str, "npt.NDArray[Any] | SharedTensor"]


class ProtocolClient(Protocol):
    """Calls one server by one protocol, from any number of threads. Each method sends one request.

    Every method may raise the errors that `map_error` converts.
    """

    def infer(self, model: str, inputs: Inputs, outputs: Sequence[str], call: Call) -> dict[str, npt.NDArray[Any]]:
        """Run one inference with the newest version of a model; return the outputs that the server sent."""
        ...

    def is_ready(self, call: Call) -> bool:
        """Return whether the server reports that it is ready."""
        ...

    def version(self, call: Call) -> str:
        """Return the version of the server."""
        ...

    def index(self, call: Call) -> list[dict[str, str]]:
        """Return name, version and state of every model in the server's repository."""
        ...

    def load_model(self, model: str, config: str | None, call: Call) -> None:
        """Tell the server to load a model. ``config`` (JSON) replaces the config.pbtxt; None keeps it."""
        ...

    def model_config(self, model: str, call: Call) -> dict[str, Any]:
        """Return the configuration with which the server runs a model, as the JSON of the HTTP protocol."""
        ...

    def statistics(self, model: str, call: Call) -> dict[str, Any]:
        """Return counts and times (nanoseconds) of a model, as the JSON of the HTTP protocol."""
        ...

    def share_memory(self, region: str, key: str, size: int, call: Call) -> None:
        """Register a region of system shared memory with the server, which must be on this machine."""
        ...

    def forget_memory(self, region: str, call: Call) -> None:
        """Unregister a region of system shared memory from the server."""
        ...

    def close(self) -> None:
        """Close the connections. Later calls raise a ConfigurationError."""
        ...


@runtime_checkable
class StreamingClient(Protocol):
    """A client of a protocol that has inferences with many answers: gRPC has, HTTP has not."""

    def stream(
        self, model: str, inputs: Tensors, outputs: Sequence[str], headers: Mapping[str, str], timeout: float
    ) -> Generator[Tensors, None, None]:
        """Run one inference of a decoupled model; yield its answers, each within the timeout in seconds."""
        ...


@runtime_checkable
class AsyncStreamingClient(Protocol):
    """Does the same on an event loop."""

    def stream(
        self, model: str, inputs: Tensors, outputs: Sequence[str], headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[Tensors, None]:
        """See StreamingClient.stream."""
        ...


class AsyncProtocolClient(Protocol):
    """Runs inferences by one protocol on an event loop. Cancelling an inference ends it on the wire."""

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], call: Call
    ) -> dict[str, npt.NDArray[Any]]:
        """See ProtocolClient.infer."""
        ...

    async def is_model_ready(self, model: str, call: Call) -> bool:
        """Return whether the server reports that a model is ready."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
