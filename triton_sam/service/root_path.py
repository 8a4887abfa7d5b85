"""A proxy's path prefix, and responses to HEAD."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RootPath:
    """Removes a proxy's path prefix from requests, unless the proxy has, and adds it to URLs in responses.

    Args:
        root: the prefix, such as ``/sam``; "" without a prefix.
    """

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not self._root:
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path == self._root and scope["type"] == "http":  # the page's links are relative to the last slash
            await RedirectResponse(f"{self._root}/")(scope, receive, send)
            return
        if path == self._root or path.startswith(f"{self._root}/"):
            raw = scope.get("raw_path") or path.encode()
            without = raw.removeprefix(self._root.encode()) or b"/"
            scope = {**scope, "path": path.removeprefix(self._root) or "/", "raw_path": without}

        async def place(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "location" in headers:
                    parts = urlsplit(headers["location"])
                    headers["location"] = parts._replace(path=self._root + parts.path).geturl()
            await send(message)

        await self._app(scope, receive, place)


class HeadRequests:
    """Handles HEAD as GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        scope["method"] = "GET"
        try:
            await self._app(scope, receive, send_head)
        finally:
            scope["method"] = "HEAD"  # for the log
