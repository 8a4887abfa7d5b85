"""The names by which callers may address the service: others are those of a foreign site that points here."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from .problems import Problem, response

ANY = "*"


class TrustedHosts:
    """Refuses requests whose header Host names another machine, also those that open a WebSocket.

    A page of evil.example may let its own name point to this machine (DNS rebinding). The browser then takes the
    service for a part of that page. Addresses such as 127.0.0.1 cannot be used so, and are always allowed.

    Args:
        app: the application.
        allowed: names besides localhost and the name of this machine; ``*.example.org`` stands for all names below
            example.org, and ``*`` for all names.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = {"localhost", socket.gethostname().lower(), *(name.lower() for name in allowed)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "")
        if self.trusts(host):
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
        if name in self._allowed or name.endswith(".localhost") or _is_address(name):
            return True
        return any(f"*.{parent}" in self._allowed for parent in _parents(name))


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
