"""The names by which callers may address the service: others are those of a foreign site that points here."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from .problems import Problem, response

HEALTH = "/health"
"""This path answers monitoring under any name of the host, and also when the service is busy."""
ANY, LOCAL = "*", "localhost"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""
OWN_SITES = ("same-origin", "none")
"""Values of Sec-Fetch-Site, by which a browser says that its user, or a page of the service itself, sends a request."""


class TrustedHosts:
    """Refuses requests whose header Host names another machine, also those that open a WebSocket.

    A page of evil.example may let its own name point to this machine (DNS rebinding). The browser then takes the
    service for a part of that page. Addresses such as 127.0.0.1 cannot be used so, and are always allowed. A service
    that asks for tokens does not need this, since the foreign page has none.

    Args:
        allowed: names besides localhost and the names of this machine; ``*.example.org`` stands for all names below
            example.org, and ``*`` for all names.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        own = (LOCAL, socket.gethostname(), socket.getfqdn())
        self._allowed = {name.lower() for name in (*own, *allowed)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "")
        if scope["path"] == HEALTH or self.trusts(host):
            await self._app(scope, receive, send)
            return
        answer = response(
            Problem(
                421,
                f"this service does not answer to the name {host[:80]!r}: call it by its own name, or start it with "
                "--allowed-host and this name",
                code="host",
            )
        )
        if scope["type"] == "http":
            await answer(scope, receive, send)
        else:
            await WebSocket(scope, receive, send).send_denial_response(answer)

    def trusts(self, host: str) -> bool:
        """Whether the value of a header Host is allowed. Old clients send none; browsers always do."""
        if not host or ANY in self._allowed:
            return True
        name = _name(host)
        return name.endswith(".localhost") or _is_address(name) or _is_among(name, self._allowed)


def check_origin(scope: Scope, origins: Sequence[str], allowed: Sequence[str]) -> None:
    """Refuse a request of a foreign web page that changes something or costs work, and its WebSocket.

    A page may send such requests to any address without asking, and only cannot read the answers. A browser says where
    they come from; other programs send no origin, and may do everything.

    Args:
        origins: further origins whose pages may do so, ``*`` for all.
        allowed: names that the operator has given the service, see TrustedHosts. A proxy may leave the port out of the
            header Host, or put a name of its own there, so a page of one of these names is the service's own.
    """
    if scope["type"] == "http" and scope["method"] in SAFE_METHODS:
        return
    headers = Headers(scope=scope)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site in OWN_SITES or (origin is None and site is None) or ANY in origins or origin in origins:
        return
    host = (origin or "").partition("://")[2]
    own_names = {name.lower() for name in allowed} - {ANY, LOCAL}  # all programs of the machine share localhost
    if host and (host == headers.get("host") or _is_among(_name(host), own_names)):
        return
    raise Problem(
        403, "pages of this origin may not use the service: start it with --cors and the origin", code="origin"
    )


def _is_among(name: str, allowed: Collection[str]) -> bool:
    """Whether a name is one of those in lower case, or below one that begins with ``*.``."""
    return name in allowed or any(f"*.{parent}" in allowed for parent in _parents(name))


def _name(host: str) -> str:
    """Return the name or address in a header Host, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".").lower()


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(1, len(parts))]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
