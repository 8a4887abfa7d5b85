"""Tracks all objects in one direction through a video's frames, as a task that sends events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...tracks.records import MaskRecord
from ..events import Events
from ..problems import Problem, meant_by
from .clients import Masks
from .schemas import PropagateRequest

if TYPE_CHECKING:
    from ...client.video import AsyncVideo

PROGRESS_SECONDS = 0.5
Keep = Callable[[int, Masks], Awaitable[tuple[MaskRecord, ...]]]
"""Stores the masks of a frame, and returns them."""


@dataclass(frozen=True)
class Tracked:
    """A tracked frame. ``records`` are the masks of all objects."""

    frame: int
    records: tuple[MaskRecord, ...]


@dataclass(frozen=True)
class Progress:
    done: int
    total: int
    frames_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class Done:
    """The last event. ``cancelled`` is true if frames are left."""

    frames: int
    cancelled: bool


class Propagation:
    """A running propagation.

    Attributes:
        events: ``Tracked`` for each frame, ``Progress``, and finally ``Done`` or a Problem.
    """

    def __init__(
        self, keep: Keep, video: AsyncVideo, request: PropagateRequest, total: int, lock: asyncio.Lock
    ) -> None:
        self.events: Events[Tracked | Progress | Done] = Events()
        self._keep = keep
        self._video = video
        self._request = request
        self._total = total
        self._lock = lock
        self._is_stopped = False
        self._done = 0
        self._started = self._told = time.monotonic()
        self.task = asyncio.create_task(self._run())

    async def frames(self) -> AsyncGenerator[Tracked, None]:
        """Yield each frame. If the reader stops early, the propagation ends."""
        try:
            async for event in self.events:
                if isinstance(event, Tracked):
                    yield event
        finally:
            self.leave()

    def stop(self) -> None:
        """Stop after the frame that Triton is computing. The reader still receives the last events."""
        self._is_stopped = True

    def leave(self, last: Problem | None = None) -> None:
        """Stop after the frame that Triton is computing. A reader receives only ``last``."""
        self._is_stopped = True
        self.events.leave(last)

    async def _run(self) -> None:
        try:
            async with self._lock:
                await self._track()
        except Exception as error:  # noqa: BLE001 - the response with status 200 may have started
            await self.events.put(meant_by(error))

    async def _track(self) -> None:
        ask = self._request
        if not self._is_stopped:
            frames = self._video.propagate(start=ask.start, count=ask.count, reverse=ask.reverse)
            async with contextlib.aclosing(frames):
                async for frame, masks in frames:
                    records = await self._keep(frame, masks)
                    self._done += 1
                    await self.events.put(Tracked(frame, records))
                    await self._tell_progress()
                    if self._is_stopped:
                        break
        await self.events.put(Done(self._done, self._is_stopped and self._done < self._total), None)

    async def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told < PROGRESS_SECONDS and self._done < self._total:
            return
        self._told = now
        rate = self._done / max(now - self._started, 1e-3)
        left = max(0, self._total - self._done) / rate
        await self.events.put(Progress(self._done, self._total, round(rate, 2), round(left, 1)))
