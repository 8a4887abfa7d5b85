"""Connection limits that uvicorn lacks: for the head of a request, and for responses that a client does not read."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 30.0
"""Maximum seconds for the head of a request. Between two requests, uvicorn waits for 5 s."""
HEAD_BYTES = 1 << 20
"""Maximum bytes of the head of a request. h11 accepts less, and httptools, which uvicorn prefers, any number."""


class _Limited(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    unread_seconds = 90.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        is_body = self.cycle is not None and self.cycle.more_body
        super().data_received(data)
        if self.transport.get_protocol() is self and (self.cycle is None or self.cycle.response_complete):
            self._head_bytes += 0 if is_body else len(data)
            if self._head_bytes > HEAD_BYTES:
                self.transport.abort()
            self._await_head()
            return
        self._head_came()
        if self.transport.get_protocol() is not self:  # the connection belongs to a WebSocket now
            self._was_read()

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
        self._head_bytes = 0
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def limited(unread_seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with timeouts. Connections that exceed them are aborted."""
    return type("Limited", (_Limited,), {"unread_seconds": unread_seconds})
