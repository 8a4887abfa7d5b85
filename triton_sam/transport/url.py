"""Parses the URL of a server in all its forms, with the default."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import ConfigurationError

URL_VARIABLE = "TRITON_URL"
DEFAULT_URL = "localhost:8000"
DEFAULT_PORTS = {"http": 8000, "https": 443, "grpc": 8001, "grpcs": 443}


@dataclass(frozen=True)
class ServerUrl:
    """A parsed server URL.

    Args:
        scheme: http, https, grpc or grpcs.
        address: ``host:port`` with an optional base path for HTTP, as tritonclient expects it.
    """

    scheme: str
    address: str

    @property
    def is_grpc(self) -> bool:
        """Whether the protocol is gRPC."""
        return self.scheme.startswith("grpc")

    @property
    def is_secure(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme.endswith("s")

    @property
    def is_local(self) -> bool:
        """Whether the host name stands for this machine."""
        host = self._place.rpartition(":")[0].strip("[]")
        return host in ("localhost", "::1") or host.startswith("127.")

    @property
    def port(self) -> int:
        """The port of the server, or of the proxy in front of it."""
        return int(self._place.rpartition(":")[2])

    @property
    def path(self) -> str:
        """The base path with its slash; "" for none."""
        return self.address[len(self._place) :]

    @property
    def _place(self) -> str:
        """``host:port`` without a base path."""
        return self.address.partition("/")[0]

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


def parse_url(url: str | None) -> ServerUrl:
    """Parse ``host:port``, ``http://``, ``https://``, ``grpc://`` or ``grpcs://``; None: $TRITON_URL or the default.

    Raises:
        ConfigurationError: the URL is invalid.
    """
    if url is not None and not isinstance(url, str):
        raise ConfigurationError(f"url must be a text such as 'localhost:8000', not {url!r}")
    text = url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
    except ValueError as error:
        raise ConfigurationError(f"{text.rpartition('@')[2]!r} is not a server URL: {error}") from None
    if "@" in parts.netloc:  # the message leaves out the password
        raise ConfigurationError("a server URL has no user and password: send headers, or a token by --token")
    try:
        port = parts.port
    except ValueError:
        remedy = "the port must be a number up to 65535, as in host:8000"
        raise ConfigurationError(f"{text!r} is not a server URL: {remedy}") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ConfigurationError(f"{text!r}: the scheme must be one of {', '.join(DEFAULT_PORTS)}")
    if not parts.hostname or re.search(r"\s", text) or parts.query or parts.fragment:
        raise ConfigurationError(f"{text!r} is not a server URL: write host:port, http://host:port or grpc://host:port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    if path and parts.scheme.startswith("grpc"):
        raise ConfigurationError(f"{text!r}: a gRPC URL has no path")
    return ServerUrl(parts.scheme, f"{host}:{port or DEFAULT_PORTS[parts.scheme]}{path}")


def usual_metrics_url(url: ServerUrl) -> str | None:
    """Return the URL of the metrics of a server on the default ports; None for a server on other ports."""
    parts = urlsplit(str(url))
    if url.is_secure or parts.port not in (8000, 8001) or parts.path:
        return None
    return f"http://{parts.netloc.rpartition(':')[0]}:8002/metrics"
