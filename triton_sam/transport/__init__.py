"""The way to a Triton server. No other package knows tritonclient."""

from .base import AsyncBaseTransport, BaseTransport
from .triton import Transport, map_error
from .url import ServerUrl, parse_url

__all__ = ["AsyncBaseTransport", "BaseTransport", "ServerUrl", "Transport", "map_error", "parse_url"]
