"""Connection limits that uvicorn lacks: for heads of requests, unread responses, and bodies after an early response."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0
"""Maximum seconds for the head of a request. Between two requests, uvicorn waits for 5 s."""
LINGER_SECONDS = 30.0
"""Maximum seconds for the rest of a body after the response; nginx's lingering_time.

If the connection stays, uvicorn drops a further rest for HEAD_SECONDS."""
LINGER_PAUSE = 5.0
"""Maximum seconds without a byte of that rest; nginx's lingering_timeout."""
LINGERS = "triton_sam.lingers"
"""Key of the ASGI scope of a request whose response has been sent, and whose body still arrives."""


class Lingering:
    """Reads and drops the rest of a body after the response, before the server closes the connection.

    Closing it would reset it while the client sends, and the client or a proxy would lose the response.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        has_more = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        client_waits = "100-continue" in headers.get("expect", "").lower()
        is_complete = False
        end: Message | None = None

        async def read() -> Message:
            nonlocal has_more, client_waits
            client_waits = False
            message = await receive()
            has_more = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            nonlocal has_more, is_complete, end
            if message["type"] == "http.response.start":
                response = MutableHeaders(scope=message)
                if client_waits:
                    has_more = False
                    response["Connection"] = "close"  # otherwise, its next request would be taken for the body
                is_complete = "content-length" in response  # for the client, before the last message
            elif is_complete and has_more and not message.get("more_body", False):
                message, end = {**message, "more_body": True}, {**message, "body": b""}
            await send(message)

        await self._app(scope, read, answer)
        if end is None:
            return
        scope[LINGERS] = True
        now = asyncio.get_running_loop().time
        last = now() + LINGER_SECONDS
        with contextlib.suppress(asyncio.TimeoutError):
            while has_more and (left := last - now()) > 0:
                await asyncio.wait_for(read(), min(LINGER_PAUSE, left))
        await send(end)


class _Limited(H11Protocol):  # not httptools, which accepts heads of any size
    unread_seconds = 90.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_protocol() is self and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
            return
        self._head_came()
        if self.transport.get_protocol() is not self:  # the connection belongs to a WebSocket now
            self._was_read()

    def shutdown(self) -> None:
        super().shutdown()
        if self.cycle is not None and self.cycle.scope.get(LINGERS):
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._head_came()
        self._was_read()
        super().connection_lost(error)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._was_read()
        super().resume_writing()

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _head_came(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def limited(unread_seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol on h11 with timeouts. Connections that exceed them are aborted."""
    return type("Limited", (_Limited,), {"unread_seconds": unread_seconds})
