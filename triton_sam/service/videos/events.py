"""Server-sent events: the text of an event, and an answer that sends events until there are no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ..._common import strict_json

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""nginx would collect events otherwise."""
PAUSE_SECONDS = 10.0
"""After so long without an event comes a comment, so that no proxy takes the connection for dead."""
WAITING = b": waiting\n\n"


@dataclass(frozen=True)
class Event:
    """One event.

    Args:
        name: ``frame``, ``progress``, ``done`` or ``error``.
        data: a JSON document in one line.
    """

    name: str
    data: str

    @property
    def is_last(self) -> bool:
        """Whether no event follows."""
        return self.name in ("done", "error")

    def to_bytes(self) -> bytes:
        """Return the event as it is sent."""
        return f"event: {self.name}\ndata: {self.data}\n\n".encode()


def event(name: str, **members: Any) -> Event:
    """Return an event whose data is a JSON object."""
    return Event(name, strict_json.dumps(members, separators=(",", ":")))


async def stream(events: asyncio.Queue[Event]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a queue up to the last one."""
    while True:
        try:
            found = await asyncio.wait_for(events.get(), PAUSE_SECONDS)
        except asyncio.TimeoutError:
            yield WAITING
            continue
        yield found.to_bytes()
        if found.is_last:
            return


class EventStream(StreamingResponse):
    """An answer of events. What makes them ends with the connection, also if not a single event was sent.

    Args:
        content: the events as they are sent.
        leave: called at the end.
    """

    media_type = MEDIA_TYPE

    def __init__(self, content: AsyncGenerator[bytes, None], leave: Callable[[], object] = lambda: None) -> None:
        super().__init__(content, headers=HEADERS)
        self._content = content
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()
            await self._content.aclose()
