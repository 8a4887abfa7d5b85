"""Events of a task for one reader, sent to a client as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from . import problems
from .answers import to_json
from .problems import Problem

Item = TypeVar("Item")

WAITING_EVENTS = 8
"""Maximum number of events that wait for the reader. A slow reader slows the task down."""
MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Stops nginx from buffering events."""
PAUSE_SECONDS = 10.0
"""After this long without an event, a comment is sent, so that proxies keep the connection open."""
WAITING = b": waiting\n\n"


class Events(Generic[Item]):
    """The events of a task, in order."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Item | Problem | None] = asyncio.Queue(WAITING_EVENTS)
        self._first: list[Item | None] = []
        self._is_left = False

    async def put(self, *events: Item | Problem | None) -> None:
        """Add events. None ends the events; a Problem ends them with an error."""
        for each in events:
            if not self._is_left:
                await self._queue.put(each)

    def leave(self, last: Problem | None = None) -> None:
        """Drop all events, because the reader has left. A remaining reader gets ``last`` at once."""
        self._is_left = True
        while not self._queue.empty():
            self._queue.get_nowait()
        if last is not None:
            self._queue.put_nowait(last)

    async def begin(self) -> None:
        """Wait for the first event, so that an earlier failure has its own status."""
        self._first = [await self.get()]

    async def get(self) -> Item | None:
        """Return the next event, or None after the last one."""
        if self._first:
            return self._first.pop()
        found = await self._queue.get()
        if isinstance(found, Problem):
            raise found
        return found

    async def __aiter__(self) -> AsyncIterator[Item]:
        while (found := await self.get()) is not None:
            yield found


def to_bytes(name: str, data: bytes) -> bytes:
    """Return an event as bytes. ``data`` is a JSON document on one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def event(name: str, **members: Any) -> bytes:
    """Return an event as bytes; its data is a JSON object of ``members``."""
    return to_bytes(name, to_json(members))


async def stream(events: Events[Item], write: Callable[[Item], Awaitable[bytes]]) -> AsyncGenerator[bytes, None]:
    """Yield all events as bytes; a failure becomes an ``error`` event."""
    while True:
        try:
            found = await asyncio.wait_for(events.get(), PAUSE_SECONDS)
            if found is None:
                return
            written = await write(found)
        except asyncio.TimeoutError:
            yield WAITING
        except Exception as error:  # noqa: BLE001 - the response with status 200 has already started
            yield event("error", **problems.body(problems.meant_by(error)))
            return
        else:
            yield written


class EventStream(StreamingResponse):
    """A stream of events. Its generator is closed with the connection, even if it has not sent any event."""

    media_type = MEDIA_TYPE

    def __init__(self, content: AsyncGenerator[bytes, None], leave: Callable[[], object] = lambda: None) -> None:
        super().__init__(content, headers=HEADERS)
        self._content = content
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()
            await self._content.aclose()
