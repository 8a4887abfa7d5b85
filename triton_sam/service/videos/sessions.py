"""The video sessions of all callers and tools, found by name, and closed when unused for a while."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .. import background
from ..logs import LOGGER

MOST_SECONDS = 5.0
"""Maximum seconds between sweeps for unused sessions; a quarter of their lifetime, if that is shorter."""


@dataclass(eq=False, kw_only=True)
class Session:
    """Frames that a caller has sent, and the results for them."""

    used: float = field(default_factory=time.monotonic)
    tool: Any = None

    @property
    def is_busy(self) -> bool:
        """Whether work is running, which counts as use."""
        return False

    def stop_soon(self) -> None:
        """Stop long work without waiting for it, because the service stops."""

    async def close(self) -> None:
        """End the session at Triton, and return everything to the budgets."""
        raise NotImplementedError


Kind = TypeVar("Kind", bound=Session)


class Sessions:
    """All sessions of one service, used on one event loop."""

    def __init__(self, idle_seconds: float) -> None:
        self._idle = idle_seconds
        self._sessions: dict[str, Session] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self) -> None:
        """Start closing unused sessions."""
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(self.remove(name) for name in list(self._sessions)))
        await background.wait()

    def stop_soon(self) -> None:
        """Stop long work, because the service stops."""
        for session in self._sessions.values():
            session.stop_soon()

    def add(self, name: str, session: Session) -> None:
        """Store a session under an unused name."""
        self._sessions[name] = session

    def find(self, name: str, kind: type[Kind]) -> Kind | None:
        """Return a session of a kind, and count this as use; None if there is none."""
        session = self._sessions.get(name)
        if not isinstance(session, kind):
            return None
        session.used = time.monotonic()
        return session

    def take(self, name: str, kind: type[Kind]) -> Kind | None:
        """Remove a session of a kind from the table, and return it for the caller to close; None if there is none."""
        session = self.find(name, kind)
        if session is not None:
            del self._sessions[name]
        return session

    async def remove(self, name: str) -> None:
        """Close a session, if there is one."""
        session = self._sessions.pop(name, None)
        if session is not None:
            await background.finish(session.close())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(MOST_SECONDS, self._idle / 4))
            now = time.monotonic()
            for name, session in list(self._sessions.items()):
                if session.is_busy:
                    session.used = now
                elif now - session.used > self._idle:
                    background.start(self.remove(name))  # a session that fails or is slow must not delay the others
                    LOGGER.info("session removed", extra={"fields": {"idle_seconds": self._idle}})
