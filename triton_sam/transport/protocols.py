"""What both protocols, HTTP and gRPC, offer a transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from .base import Tensors
from .timed_sockets import Call


@dataclass(frozen=True)
class SharedTensor:
    """An input that the server reads from system shared memory.

    Args:
        region: name of the region, told to the server before.
        offset: of the first byte in the region.
        array: the same tensor on this side, for its shape and type.
    """

    region: str
    offset: int
    array: npt.NDArray[Any]


Inputs = Mapping[str, "npt.NDArray[Any] | SharedTensor"]


class ProtocolClient(Protocol):
    """Speaks one protocol to one server, from any number of threads; each method is one request.

    Every method may raise what `map_error` knows.
    """

    def infer(self, model: str, inputs: Inputs, outputs: Sequence[str], call: Call) -> dict[str, npt.NDArray[Any]]:
        """Run one inference with the newest version of a model; return the outputs that the server sent."""
        ...

    def is_ready(self, call: Call) -> bool:
        """Whether the server says that it is ready."""
        ...

    def version(self, call: Call) -> str:
        """Return the version of the server."""
        ...

    def index(self, call: Call) -> list[dict[str, str]]:
        """Return name, version and state of every model in the server's repository."""
        ...

    def load_model(self, model: str, config: str | None, call: Call) -> None:
        """Let the server load a model, with a configuration in JSON instead of its config.pbtxt where one is given."""
        ...

    def model_config(self, model: str, call: Call) -> dict[str, Any]:
        """Return the configuration that the server runs a model with, as the JSON of the HTTP protocol."""
        ...

    def statistics(self, model: str, call: Call) -> dict[str, Any]:
        """Return counts and times of a model, as the JSON of the HTTP protocol."""
        ...

    def share_memory(self, region: str, key: str, size: int, call: Call) -> None:
        """Tell the server, on this machine, of a region of system shared memory."""
        ...

    def forget_memory(self, region: str, call: Call) -> None:
        """Let the server forget a region of system shared memory."""
        ...

    def close(self) -> None:
        """Close the connections. Later calls raise a ConfigurationError."""
        ...


class AsyncProtocolClient(Protocol):
    """The same for an event loop, and for inferences alone. Cancelling one ends it on the wire."""

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], call: Call
    ) -> dict[str, npt.NDArray[Any]]:
        """See ProtocolClient.infer."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
