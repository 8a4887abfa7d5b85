"""One way of all objects through the frames of a video, as a task that puts its events into a queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from .. import problems
from ..problems import Problem
from .clients import OpenVideo
from .events import Event, event
from .schemas import PropagateRequest

if TYPE_CHECKING:
    from .tracking import Tracking

WAITING_EVENTS = 8
"""Events that may wait for a reader. A reader that is slower than Triton slows the tracking down."""
PROGRESS_SECONDS = 0.5


class Propagation:
    """A running propagation.

    Args:
        tracking: keeps the masks.
        video: the session at Triton.
        request: the frames.
        total: their number.
        lock: held while the propagation runs.

    Attributes:
        events: ``frame`` for each frame, ``progress``, and at the end ``done`` or ``error``.
        task: the task that tracks.
    """

    def __init__(
        self, tracking: Tracking, video: OpenVideo, request: PropagateRequest, total: int, lock: asyncio.Lock
    ) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue(WAITING_EVENTS)
        self._tracking = tracking
        self._video = video
        self._request = request
        self._total = total
        self._lock = lock
        self._is_stopped = False
        self._is_left = False
        self._done = 0
        self._started = self._told = time.monotonic()
        self.task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop after the frame that Triton computes. The reader still gets the last events."""
        self._is_stopped = True

    def leave(self) -> None:
        """Stop after the frame that Triton computes. Nobody reads events any more."""
        self._is_stopped = self._is_left = True
        while not self.events.empty():
            self.events.get_nowait()

    def end(self, problem: Problem) -> None:
        """Stop after the frame that Triton computes. The reader gets a last event, an error, at once."""
        self.leave()
        self.events.put_nowait(event("error", **problems.body(problem)))

    async def _run(self) -> None:
        try:
            async with self._lock:
                await self._track()
        except Exception as error:  # noqa: BLE001 - the reader has an answer with status 200 already
            await self._fail(problems.meant_by(error))

    async def _track(self) -> None:
        ask = self._request
        if not self._is_stopped:
            frames = self._video.propagate(start=ask.start, count=ask.count, reverse=ask.reverse)
            async with contextlib.aclosing(frames):
                async for frame, masks in frames:
                    answer = await self._tracking.keep(frame, masks, ask.format, ask.tolerance, is_complete=True)
                    self._done += 1
                    await self._put(Event("frame", answer.model_dump_json(exclude_none=True)))
                    await self._tell_progress()
                    if self._is_stopped:
                        break
        await self._put(event("done", frames=self._done, cancelled=self._is_stopped and self._done < self._total))

    async def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told < PROGRESS_SECONDS and self._done < self._total:
            return
        self._told = now
        rate = self._done / max(now - self._started, 1e-3)
        left = max(0, self._total - self._done) / rate
        await self._put(
            event(
                "progress",
                done=self._done,
                total=self._total,
                frames_per_second=round(rate, 2),
                seconds_left=round(left, 1),
            )
        )

    async def _fail(self, problem: Problem) -> None:
        await self._put(event("error", **problems.body(problem)))

    async def _put(self, found: Event) -> None:
        if not self._is_left:
            await self.events.put(found)
