"""The video sessions of all callers and tools, closed when unused, and videos whose frames arrive one by one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import VideoError
from ...inputs.video.streams import GrowingFrames, SharedPath
from ...tracks.records import MaskRecord
from .. import background
from ..budgets import Lease
from ..logs import LOGGER
from ..problems import Problem
from ..store import StoredImage
from .tracking import Tracking

if TYPE_CHECKING:
    from ...client.video import AsyncVideo

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

    def start(self) -> None:
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(self.remove(name) for name in list(self._sessions)))
        await background.wait()

    def stop_soon(self) -> None:
        for session in self._sessions.values():
            session.stop_soon()

    def add(self, name: str, session: Session) -> None:
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


UNKNOWN = "unknown or expired object: draw it in a frame, and track it from there"
"""The message that a tool shows when a session has ended."""


@dataclass(eq=False)
class LiveVideo(Session):
    """A session. Calls run one after the other; those that have begun run to completion, even if the caller leaves.

    Args:
        path: the frames that the objects go through. A tool may send a session's objects one after the other, each
            through all frames: the first object brings the frames, and the others are tracked with it.
        tracking: the objects, and the masks of frames that an object may still request.
    """

    frames: GrowingFrames
    path: SharedPath
    tracking: Tracking
    place: Lease
    memory: Lease
    most_frames: int
    _tracked: int = 1

    @property
    def is_busy(self) -> bool:
        return self.tracking.is_busy

    async def track(self, image: StoredImage, numbers: Sequence[int]) -> list[MaskRecord]:
        """Return the masks of objects in a frame. An image that equals an object's last one is the same frame."""
        if not all(number in self.path for number in numbers):
            raise unknown()

        async def work(video: AsyncVideo) -> list[MaskRecord]:
            try:
                places = {number: self.path.find(number, image.image_id, self._tracked) for number in numbers}
            except VideoError as error:
                raise Problem(409, str(error), code="other_frame") from None
            if self.frames.count in places.values():
                self._add(image)
            if max(places.values()) >= self._tracked:
                await self._catch_up(video)
            found = [self.tracking.records.of(places[number], number) for number in numbers]
            self.tracking.records.forget_before(self.path.move(places))
            return found

        return await self.tracking.change(work)

    async def close(self) -> None:
        try:
            await self.tracking.close()
        finally:
            self.place.give()
            self.memory.give()

    def _add(self, image: StoredImage) -> None:
        if self.frames.count >= self.most_frames:
            raise Problem(413, f"a video may have at most {self.most_frames} frames: start another one")
        self.memory.check(len(image.content))
        self.frames.append(image.content, image.size)
        self.memory.hold(self.frames.nbytes)  # at most the previous amount and this frame
        self.path.append(image.image_id)

    async def _catch_up(self, video: AsyncVideo) -> None:
        """Track from the first untracked frame, because an earlier call may have failed."""
        frames = video.propagate(start=self._tracked, count=self.frames.count - self._tracked)
        async with contextlib.aclosing(frames):
            async for frame, masks in frames:
                await self.tracking.keep(frame, masks, is_tracked=True)
                self._tracked = frame + 1


def unknown() -> Problem:
    return Problem(404, UNKNOWN, code="unknown_state")
