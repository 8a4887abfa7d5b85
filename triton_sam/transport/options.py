"""What both transports are told before their first call, and refuse: times, headers, certificates."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from ..errors import ConfigurationError
from .url import ServerUrl

LONGEST_TIMEOUT = 1e9
"""Seconds, 30 years: more is too much for some clock on the way to the server."""
GRPC_GRACE = 0.25
"""Seconds beyond its deadline after which a call is given up."""
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", 2**31 - 1),
    ("grpc.max_receive_message_length", 2**31 - 1),
    # gRPC's own pause between attempts to connect grows to two minutes, and during a pause every call fails at once: a
    # server that is back would look dead. A channel that failed is therefore replaced, and a new one tries at once,
    # unless it shares the old one's connections.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # In spite of its name also how long an attempt may take: 20 s, where a peer takes the connection and says nothing.
    ("grpc.min_reconnect_backoff_ms", 5000),
]


def check_times(timeout: float, retries: int) -> None:
    """Check the timeout of a call, seconds, and how often it is repeated.

    Raises:
        ConfigurationError: one of them cannot work.
    """
    if not 0 < timeout <= LONGEST_TIMEOUT:  # NaN is neither above nor below
        raise ConfigurationError(f"timeout must be above 0 seconds and at most {LONGEST_TIMEOUT:.0f}, not {timeout}")
    if retries < 0:
        raise ConfigurationError(f"retries must be at least 0, not {retries}")


def certificates(ca_certs: str | os.PathLike[str] | None) -> str | None:
    """Return the path of a PEM file, once it is clear that there are certificates in it.

    Raises:
        ConfigurationError: there is no such file, or nothing of the kind in it.
    """
    if ca_certs is None:
        return None
    path = os.fspath(ca_certs)
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as error:  # the libraries below fail on it later, each in its own way
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else "no PEM file"
        raise ConfigurationError(f"no certificates at {path}: {reason}") from error
    return path


def request_headers(url: ServerUrl, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return headers as the protocol wants them: gRPC refuses capital letters in their names.

    Raises:
        ConfigurationError: a character that no header may hold. A value is not repeated: it may be a secret.
    """
    for name, value in (headers or {}).items():
        if not (name.isascii() and name.isprintable() and value.isascii() and value.isprintable()):
            raise ConfigurationError(
                f"the header {name!r} holds a character that no header may: a line break, another control character, "
                "or one that is not ASCII"
            )
    return {name.lower() if url.is_grpc else name: value for name, value in (headers or {}).items()}


def grpc_options(url: ServerUrl) -> list[tuple[str, int]]:
    """Return the options of a channel; one to this machine does not go through the proxy that the environment names."""
    return [*_GRPC_OPTIONS, *([("grpc.enable_http_proxy", 0)] if url.is_local else [])]
