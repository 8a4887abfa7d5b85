"""The options of both transports, and their checks: timeouts, headers, certificates."""

from __future__ import annotations

import numbers
import os
import re
import ssl
from collections.abc import Mapping
from typing import Literal, get_args

from ..errors import ConfigurationError
from .url import ServerUrl

Busy = Literal["raise", "wait"]
"""What a client does when the server is busy: raise a ServerBusyError at once, or wait until the call's timeout."""
CLOSED = "this client is closed: make a new one"
LONGEST_TIMEOUT = 1e9
"""Seconds, about 30 years. Longer timeouts overflow clocks in the libraries below."""
GRPC_GRACE = 0.25
"""Seconds after its deadline at which this package abandons a gRPC call that has not ended by itself."""
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", 2**31 - 1),
    ("grpc.max_receive_message_length", 2**31 - 1),
    # gRPC pauses for up to two minutes between attempts to connect, and every call during a pause fails at once, even
    # if the server is back. This package therefore replaces a channel that failed. The new channel connects at once,
    # provided that it does not share the connections of the old one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Despite its name, this also limits an attempt to connect (default: 20 s) if the peer accepts but does not answer.
    ("grpc.min_reconnect_backoff_ms", 5000),
]


def check_number(name: str, value: object, *, whole: bool = False) -> None:
    """Check the type of an argument that users may read from text, such as a setting. NumPy's numbers are accepted.

    Raises:
        ConfigurationError: it is not a number, or not an integer.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral if whole else numbers.Real):
        raise ConfigurationError(f"{name} must be a {'whole ' if whole else ''}number, not {value!r}")


def check_times(timeout: float, retries: int) -> None:
    """Check the timeout of a call, in seconds, and the number of its retries.

    Raises:
        ConfigurationError: one of them is not a number, or out of range.
    """
    check_number("timeout", timeout)
    check_number("retries", retries, whole=True)
    if not 0 < timeout <= LONGEST_TIMEOUT:  # NaN is neither above nor below
        raise ConfigurationError(f"timeout must be above 0 seconds and at most {LONGEST_TIMEOUT:.0f}, not {timeout}")
    if retries < 0:
        raise ConfigurationError(f"retries must be at least 0, not {retries}")


def waits_if_busy(busy: Busy) -> bool:
    """Return whether a client waits for a busy server.

    Raises:
        ConfigurationError: ``busy`` has another value.
    """
    if busy not in get_args(Busy):
        raise ConfigurationError(f"busy must be one of {', '.join(get_args(Busy))}, not {busy!r}")
    return busy == "wait"


def certificates(ca_certs: str | os.PathLike[str] | None) -> str | None:
    """Return the path of a PEM file after checking that it holds certificates.

    Raises:
        ConfigurationError: the file does not exist, or holds no certificates.
    """
    if ca_certs is None:
        return None
    path = os.fspath(ca_certs)
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as error:  # checked here because the libraries below fail later, with unclear errors
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else "no PEM file"
        raise ConfigurationError(f"no certificates at {path}: {reason}") from error
    return path


def check_headers(headers: Mapping[str, str] | None) -> None:
    """Check the names and values of headers.

    Raises:
        ConfigurationError: a header is not a string, or holds an invalid character. The message omits the value, which
            may be a secret.
    """
    if headers is not None and not isinstance(headers, Mapping):
        raise ConfigurationError(f"headers must be a mapping of names to texts, not {type(headers).__name__}")
    for name, value in (headers or {}).items():
        if not (isinstance(name, str) and isinstance(value, str)):
            which = f"the value of {name!r}" if isinstance(name, str) else f"the name {name!r}"
            raise ConfigurationError(f"headers must be a mapping of names to texts; {which} is not a string")
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):  # RFC 9110, 5.6.2
            raise ConfigurationError(f"the header name {name!r} is not valid: write letters, digits and -")
        if not (value.isascii() and value.isprintable()):
            raise ConfigurationError(
                f"the header {name!r} holds a character that no header may: a line break, another control character, "
                "or one that is not ASCII"
            )


def grpc_options(url: ServerUrl) -> list[tuple[str, int]]:
    """Return the options of a gRPC channel. Channels to this machine bypass the proxy of the environment."""
    return [*_GRPC_OPTIONS, *([("grpc.enable_http_proxy", 0)] if url.is_local else [])]
