"""The way to a Triton server. No other package knows tritonclient."""

from .base import AsyncBaseTransport, BaseTransport, Result, Tensors
from .retry import RETRY_PAUSE
from .triton import CONNECT_TIMEOUT, GRPC_GRACE, Transport, infer_input, map_error, read_outputs
from .url import ServerUrl, parse_url

__all__ = [
    "CONNECT_TIMEOUT",
    "GRPC_GRACE",
    "RETRY_PAUSE",
    "AsyncBaseTransport",
    "BaseTransport",
    "Result",
    "ServerUrl",
    "Tensors",
    "Transport",
    "infer_input",
    "map_error",
    "parse_url",
    "read_outputs",
]
