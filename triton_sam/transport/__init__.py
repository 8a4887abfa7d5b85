"""The way to a Triton server: HTTP through urllib3, gRPC through tritonclient."""

from .base import AsyncBaseTransport, BaseTransport
from .failures import map_error
from .triton import Transport
from .url import ServerUrl, parse_url

__all__ = ["AsyncBaseTransport", "BaseTransport", "ServerUrl", "Transport", "map_error", "parse_url"]
