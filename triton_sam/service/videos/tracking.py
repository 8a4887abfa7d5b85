"""The objects of one video: their prompts, their masks, and the session at Triton that tracks them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import SamError
from ...inputs.video.base import FrameSource
from ...masks.rle import BoolArray, rle_to_mask
from ...masks.segment import VideoSegment
from ...tracks.records import MaskRecord
from .. import background
from ..budgets import Budget, Budgets
from ..events import Events
from ..metrics import Metrics
from ..problems import Problem, meant_by
from ..schemas import RleMask
from .records import Records, overlapping
from .schemas import PropagateRequest, VideoPrompt

if TYPE_CHECKING:
    from ...client.video import AsyncSAM2VideoClient, AsyncVideo

PROGRESS_SECONDS = 0.5
Masks = Mapping[int, VideoSegment]
"""The mask of each object id in one frame."""
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
        self, keep: Keep, video: AsyncVideo, request: PropagateRequest, total: int, lock: asyncio.Lock, places: Budget
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
        place = places.take()
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(lambda _: place.give())

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


Result = TypeVar("Result")


class Tracking:
    """The session of one video. It starts at Triton with the first prompt.

    Changes of the session run one after the other. One that has begun runs to completion, even if the caller leaves: so
    the service and Triton always agree.
    """

    def __init__(
        self, frames: FrameSource, client: AsyncSAM2VideoClient, budgets: Budgets, metrics: Metrics, *, every: int = 1
    ) -> None:
        self.records = Records(budgets.video_masks)
        self.prompted: dict[int, set[int]] = {}
        self.every = every
        self._frames = frames
        self._client = client
        self._budgets = budgets
        self._metrics = metrics
        self._video: AsyncVideo | None = None
        self._lock = asyncio.Lock()
        self._propagation: Propagation | None = None
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a change or a propagation runs."""
        return self._lock.locked()

    @property
    def is_tracking(self) -> bool:
        return self._propagation is not None and not self._propagation.task.done()

    async def add(self, prompt: VideoPrompt) -> MaskRecord:
        self._check_frame(prompt.frame)
        if prompt.labels is not None and len(prompt.labels) != len(prompt.points):
            raise Problem(422, "labels must hold one label for each point")
        if prompt.mask_rle is not None and (prompt.points or prompt.box is not None):
            raise Problem(422, "give a mask alone, or points and a box")
        if prompt.mask_rle is None and prompt.box is None and not prompt.points:
            raise Problem(422, "give points, a box or a mask")

        async def work(video: AsyncVideo) -> MaskRecord:
            mask = None if prompt.mask_rle is None else await asyncio.to_thread(self._mask, prompt.mask_rle)
            segment = await video.add(
                prompt.frame,
                prompt.object_id,
                points=prompt.points or None,
                labels=(prompt.labels or [1] * len(prompt.points)) if prompt.points else None,
                box=prompt.box,
                mask=mask,
                clear_old_points=prompt.clear_old_points,
            )
            self.prompted.setdefault(prompt.object_id, set()).add(prompt.frame)
            (record,) = await self.keep(prompt.frame, {prompt.object_id: segment})
            return record

        return await self.change(work)

    async def remove(self, object_id: int) -> None:
        self._check_object(object_id)

        async def work(video: AsyncVideo) -> None:
            await video.remove(object_id)
            self.prompted.pop(object_id, None)
            self.records.remove_object(object_id)

        await self.change(work)

    async def clear(self, frame: int, object_id: int) -> None:
        self._check_object(object_id)
        if frame not in self.prompted[object_id]:
            raise Problem(404, f"object {object_id} has no prompt in frame {frame}", code="unknown_prompt")

        async def work(video: AsyncVideo) -> None:
            await video.clear(frame, object_id)
            self.prompted[object_id].discard(frame)
            self.records.remove(frame, object_id)

        await self.change(work)

    async def reset(self) -> None:
        async def work(video: AsyncVideo) -> None:
            await video.reset()
            self.prompted.clear()
            self.records.clear()

        await self.change(work)

    async def propagate(self, request: PropagateRequest) -> Propagation:
        if request.start is not None:
            self._check_frame(request.start)
        self._check_idle()
        video = self._video
        if video is None or not any(self.prompted.values()):
            raise Problem(422, "there is no prompt to track from: add a prompt to a frame first")
        first = min(frame for frames in self.prompted.values() for frame in frames)
        total = self._count(request, first if request.start is None else request.start)
        keep = partial(self.keep, is_tracked=True)
        self._propagation = Propagation(keep, video, request, total, self._lock, self._budgets.tracks)
        return self._propagation

    async def cancel(self) -> bool:
        """Stop a propagation after the frame that Triton is computing, and wait until it has stopped.

        Returns:
            Whether one was running.
        """
        propagation = self._propagation
        if propagation is None or propagation.task.done():
            return False
        propagation.stop()
        await asyncio.wait({propagation.task})
        return True

    def stop_soon(self) -> None:
        """Stop a propagation after the frame that Triton is computing, without waiting for it."""
        if self._propagation is not None:
            self._propagation.stop()

    async def close(self) -> None:
        """Stop everything, end the session at Triton, and remove all masks."""
        if self._propagation is not None:
            self._propagation.leave(gone())
            await asyncio.wait({self._propagation.task})
        async with self._lock:
            self._is_closed = True
            video, self._video = self._video, None
            self.prompted.clear()
            self.records.clear()
            if video is not None:
                with contextlib.suppress(SamError):  # Triton closes an idle session after a timeout
                    await video.aclose()

    async def keep(self, frame: int, masks: Masks, *, is_tracked: bool = False) -> tuple[MaskRecord, ...]:
        can_be_downloaded = self._frames.num_frames is not None

        def work() -> tuple[tuple[MaskRecord, ...], bytes | None]:
            records = tuple(MaskRecord.of(frame, object_id, segment) for object_id, segment in masks.items())
            return records, overlapping(masks) if is_tracked and can_be_downloaded else None

        width, height = self._frames.size
        records, labels = await self._budgets.workers.call(width * height * (len(masks) + 1), work)
        self.records.put(frame, records, labels)
        if is_tracked:
            self._metrics.tracked_frames.inc()
        return records

    async def change(self, work: Callable[[AsyncVideo], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of work with the session at Triton, which is started if necessary."""
        self._check_idle()
        await self._lock.acquire()  # a caller that leaves before its turn changes nothing

        async def run() -> Result:
            try:
                if self._is_closed:
                    raise gone()
                if self._video is None:
                    self._video = await self._client.open(self._frames, every=self.every)
                return await work(self._video)
            finally:
                self._lock.release()

        return await background.finish(run())

    def _check_idle(self) -> None:
        if self.is_tracking:
            raise Problem(
                409, "the video is being tracked: wait, or stop it with POST /v1/videos/{id}/cancel", code="tracking"
            )

    def _check_frame(self, frame: int) -> None:
        count = self._frames.num_frames  # None: the frames arrive one by one
        if count is not None and frame >= count:
            raise Problem(422, f"there is no frame {frame}: the last one is {count - 1}")

    def _check_object(self, object_id: int) -> None:
        if object_id not in self.prompted:
            raise Problem(404, f"there is no object {object_id}", code="unknown_object")

    def _count(self, request: PropagateRequest, start: int) -> int:
        left = start if request.reverse else (self._frames.num_frames or 0) - 1 - start
        there = left // self.every + 1
        return min(there, request.count or there)

    def _mask(self, rle: RleMask) -> BoolArray:
        width, height = self._frames.size
        if rle.size != [height, width]:
            raise Problem(422, f"mask_rle.size must be [{height}, {width}], the height and width of the video")
        return rle_to_mask({"size": rle.size, "counts": rle.counts})


def gone() -> Problem:
    return Problem(404, "the video has been removed", code="unknown_video")
