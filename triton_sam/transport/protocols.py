"""The interface that the clients of both protocols, HTTP and gRPC, offer to a transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from .base import Tensors
from .timed_sockets import Call


class ProtocolClient(Protocol):
    """Calls one server by one protocol, from any number of threads. Each method sends one request.

    Every method may raise the errors that `map_error` converts.
    """

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str], call: Call) -> dict[str, npt.NDArray[Any]]:
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

    def close(self) -> None:
        """Close the connections. Later calls raise a ConfigurationError."""
        ...
