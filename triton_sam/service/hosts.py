"""Allowed host names of the service: other names belong to a foreign site that points to this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .problems import Problem, response

HEALTH = "/health"
"""This path responds to monitoring under any host name, and also when the service is busy."""
ANY, LOCAL = "*", "localhost"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""
OWN_SITES = ("same-origin", "none")
"""Values of Sec-Fetch-Site for requests that the browser's user or a page of the service itself sends."""


class TrustedHosts:
    """Rejects requests and WebSockets whose header Host names another machine.

    A page of evil.example may let its own name point to this machine (DNS rebinding). The browser then treats the
    service as a part of that page. IP addresses such as 127.0.0.1 cannot be abused in this way, and are always allowed.
    Services with tokens do not need this check, because the foreign page has no token.

    Args:
        allowed: names in addition to localhost and the names of this machine; ``*.example.org`` stands for all names
            below example.org, and ``*`` for all names.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        own = (LOCAL, socket.gethostname(), socket.getfqdn())
        self._allowed = {name.lower() for name in (*own, *allowed)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "")
        if scope["path"] == HEALTH or self.trusts(host):
            await self._app(scope, receive, send)
            return
        problem = Problem(
            421,
            f"this service does not answer to the name {host[:80]!r}: call it by its own name, or start it with "
            "--allowed-host and this name",
            code="host",
        )
        await response(problem)(scope, receive, send)

    def trusts(self, host: str) -> bool:
        """Whether a header Host is allowed. Old clients send none; browsers always do."""
        if not host or ANY in self._allowed:
            return True
        name = _name(host)
        return name.endswith(".localhost") or _is_address(name) or _is_among(name, self._allowed)


def check_origin(scope: Scope, origins: Sequence[str], allowed: Sequence[str]) -> None:
    """Reject a foreign web page's WebSocket, and its requests that change something or cost work.

    A page may send simple requests to any URL without a preflight request; it only cannot read the responses. A browser
    sends the origin of the page; other programs send no origin, and are not restricted.

    Args:
        origins: further allowed origins, ``*`` for all.
        allowed: host names that the operator has configured, see TrustedHosts. Pages under these names are the
            service's own, because a proxy may drop the port from the header Host or replace the name.
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
    """Whether a name is in a list of lower-case names, or below a name that begins with ``*.``."""
    return any(name == each or (each.startswith("*.") and name.endswith(each[1:])) for each in allowed)


def _name(host: str) -> str:
    """Return the host name or IP address in a header Host, without the port."""
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return host if port and not port.startswith(":") else name
    return host.partition(":")[0].rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
