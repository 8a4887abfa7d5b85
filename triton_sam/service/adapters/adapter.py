"""An adapter lets the service speak another tool's protocol. `AdapterRequests` is the middleware of all adapters."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..bodies import ADAPTER
from ..problems import Problem, error_form

if TYPE_CHECKING:
    from fastapi import APIRouter

    from .bridge import Bridge


@dataclass(frozen=True)
class Adapter:
    """The protocol of one tool.

    Args:
        error: converts a problem to the body of the tool's error response; a string is sent as plain text.
        token: returns a request's token that is not sent as ``Authorization: Bearer``; "" without one.
        sign_in: how to send the token, for the 401 response.
    """

    name: str
    paths: tuple[str, ...]
    router: Callable[[Bridge], APIRouter]
    error: Callable[[Problem], Mapping[str, Any] | str]
    token: Callable[[Scope], str] = lambda _: ""
    sign_in: str = ""
    open_paths: tuple[str, ...] = ()

    def serves(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self.paths)


class AdapterRequests:
    """Marks an adapter's requests, and converts their errors to the tool's form.

    Slashes that follow each other count as one: X-AnyLabeling appends ``/v1`` to an address that may end with a slash.
    """

    def __init__(self, app: ASGIApp, adapters: tuple[Adapter, ...]) -> None:
        self._app = app
        self._adapters = adapters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = re.sub("/+", "/", scope.get("path", ""))
        adapter = next((each for each in self._adapters if each.serves(path)), None)
        if adapter is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, ADAPTER: adapter, "path": path}
        before = error_form.set(adapter.error)
        try:
            await self._app(scope, receive, send)
        finally:
            error_form.reset(before)


def basic_password(scope: Scope) -> str:
    """Return the password of ``Authorization: Basic``; the user name is ignored."""
    kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(given.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
