"""Videos whose frames arrive one by one from a tool: their sessions, their objects, and how long they stay."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import SamError, VideoError
from ...inputs.video.growing import GrowingFrames
from ...inputs.video.path import SharedPath
from ...masks.rle import BoolArray
from ...masks.video_segment import VideoSegment
from ...tracks.records import MaskRecord
from .. import background
from ..budgets import Lease
from ..engine import Engine, Pair
from ..logs import LOGGER
from ..problems import Problem
from ..store import StoredImage
from .clients import OpenVideo, VideoClient
from .records import Records
from .store import MOST_SECONDS, Videos

Result = TypeVar("Result")
UNKNOWN = "the state of an object is not known (any more): draw the object in a frame, and track it again from there"
"""The message that a tool shows when a session has ended."""


@dataclass(frozen=True)
class Drawn:
    """An object that a user has drawn in the first frame: a box, points, or a mask.

    Args:
        box: x1, y1, x2, y2 in pixels.
        points: x, y in pixels, each inside of the object.
        mask: bool (H,W).
    """

    box: Sequence[float] | None = None
    points: Sequence[Sequence[float]] | None = None
    mask: BoolArray | None = None


class LiveVideo:
    """A session. Calls run one after the other, each to its end, even if its caller goes away.

    Args:
        image: the first frame.
        client: the client of the video model.
        engine: has the budgets.
        leases: the place of the session, and the memory of its frames.
    """

    def __init__(self, image: StoredImage, client: VideoClient, engine: Engine, leases: tuple[Lease, Lease]) -> None:
        self.used = time.monotonic()
        self._frames = GrowingFrames(image.content, image.size)
        self._path = SharedPath(image.image_id)
        self._records = Records(engine.budgets.video_masks)  # of the frames that an object may still ask for
        self._tracked = 1
        self._client = client
        self._engine = engine
        self._place, self._memory = leases
        self._video: OpenVideo | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def begin(self, drawn: Sequence[Drawn]) -> list[MaskRecord]:
        """Prompt objects in the first frame, which get the numbers 1, 2, ..., and return their masks.

        Raises:
            Problem: 503, there is no memory for the frame.
            SamError: a prompt cannot be used, or Triton fails.
        """

        async def work() -> list[MaskRecord]:
            self._memory.grow(self._frames.nbytes)
            self._video = await self._client.open(self._frames)
            for number, each in enumerate(drawn, 1):
                labels = None if each.points is None else [1] * len(each.points)
                segment = await self._video.add(
                    0, number, points=each.points, labels=labels, box=each.box, mask=each.mask
                )
                self._records.put(0, [await self._record(0, number, segment)])
                self._path.begin(number)
            return list(self._records.at(0))

        return await self._run(work)

    async def track(self, image: StoredImage, numbers: Sequence[int]) -> list[MaskRecord]:
        """Return the masks of objects in a frame. An image that equals the last one of an object is the same frame.

        A tool may send the objects of a session one after the other, each through all frames: the first one brings
        the frames, and the others are tracked with it.

        Raises:
            Problem: 404, there is no such object; 409, another frame than that of the others; 413, there are too many
                frames; 503, there is no memory for the frame.
            SamError: the frame cannot be used, or Triton fails. The call can be repeated.
        """
        if not all(number in self._path for number in numbers):
            raise Problem(404, UNKNOWN, code="unknown_state")

        async def work() -> list[MaskRecord]:
            try:
                places = {number: self._path.find(number, image.image_id, self._tracked) for number in numbers}
            except VideoError as error:
                raise Problem(409, str(error), code="other_frame") from None
            if self._frames.count in places.values():
                self._add(image)
            if max(places.values()) >= self._tracked:
                await self._catch_up()
            found = [self._records.of(places[number], number) for number in numbers]
            self._records.forget_before(self._path.move(places))
            return found

        return await self._run(work)

    async def close(self) -> None:
        """End the session at Triton, and give everything back."""
        try:
            async with self._lock:
                self._is_closed = True
                video, self._video = self._video, None
                if video is not None:
                    with contextlib.suppress(SamError):  # Triton closes an idle session by itself
                        await video.aclose()
        finally:
            self._place.give()
            self._memory.give()
            self._records.clear()

    def _add(self, image: StoredImage) -> None:
        most = self._engine.settings.max_video_frames
        if self._frames.count >= most:
            raise Problem(413, f"a video may have {most} frames")
        self._engine.budgets.video_masks.check(len(image.content))
        self._frames.append(image.content, image.size)
        self._memory.hold(self._frames.nbytes)  # not more than before and this frame
        self._path.append(image.image_id)

    async def _catch_up(self) -> None:
        """Track from the frame behind the last one that was tracked: an earlier call may have failed."""
        video = self._video
        if video is None:
            raise Problem(404, UNKNOWN, code="unknown_state")
        frames = video.propagate(start=self._tracked, count=self._frames.count - self._tracked)
        async with contextlib.aclosing(frames):
            async for frame, masks in frames:
                self._records.put(frame, [await self._record(frame, number, each) for number, each in masks.items()])
                self._tracked = frame + 1
                self._engine.metrics.tracked_frames.inc()

    async def _record(self, frame: int, number: int, segment: VideoSegment) -> MaskRecord:
        width, height = self._frames.size

        async def fetch() -> list[VideoSegment]:
            return [segment]

        return await self._engine.budgets.workers.run(
            2 * width * height, fetch, lambda found: MaskRecord.of(frame, number, next(iter(found)))
        )

    async def _run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        self.used = time.monotonic()

        async def run() -> Result:
            async with self._lock:
                if self._is_closed:
                    raise Problem(404, UNKNOWN, code="unknown_state")
                return await work()

        try:
            return await background.finish(run())
        finally:
            self.used = time.monotonic()

    @property
    def is_busy(self) -> bool:
        """Whether a call runs."""
        return self._lock.locked()


class LiveVideos:
    """All sessions of one service. Their names cannot be guessed.

    Args:
        engine: has the budgets.
        videos: knows the clients of the video models.
    """

    def __init__(self, engine: Engine, videos: Videos) -> None:
        self._engine = engine
        self._videos = videos
        self._live: dict[str, LiveVideo] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._live)

    async def start(self) -> None:
        """Begin to remove unused sessions."""
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """End all sessions."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(self._end(name) for name in list(self._live)))

    async def begin(self, image: StoredImage, pair: Pair, drawn: Sequence[Drawn]) -> tuple[str, list[MaskRecord]]:
        """Begin a session, and return its name and the masks of the objects in the first frame.

        Raises:
            Problem: 404, the pair has no video model; 503, there are too many videos, or there is no memory.
            SamError: a prompt cannot be used, or Triton fails.
        """
        pair = await self._videos.pair(pair.name)
        budgets = self._engine.budgets
        with budgets.videos.take() as place, budgets.video_masks.take(0) as memory:
            client = self._videos.clients.of(pair)
            video = LiveVideo(image, client, self._engine, (place.pass_on(), memory.pass_on()))
        name = uuid.uuid4().hex
        self._live[name] = video
        try:
            return name, await video.begin(drawn)
        except BaseException:
            await background.finish(self._end(name))  # it waits for the call, which goes on
            raise

    def get(self, name: str) -> LiveVideo:
        """Return a session.

        Raises:
            Problem: 404, it is not known, or not any more.
        """
        video = self._live.get(name)
        if video is None:
            raise Problem(404, UNKNOWN, code="unknown_state")
        return video

    async def track(self, image: StoredImage, wanted: Mapping[str, Sequence[int]]) -> dict[str, list[MaskRecord]]:
        """Return the masks of objects of several sessions in a frame, by name of the session.

        Raises:
            Problem: 404, a session or object is not known. No session has taken the frame then. See LiveVideo.track().
        """
        videos = {name: self.get(name) for name in wanted}
        return {name: await video.track(image, wanted[name]) for name, video in videos.items()}

    async def _end(self, name: str) -> None:
        video = self._live.pop(name, None)
        if video is not None:
            await video.close()

    async def _sweep(self) -> None:
        idle = self._engine.settings.video_idle_seconds
        while True:
            await asyncio.sleep(min(MOST_SECONDS, idle / 4))
            now = time.monotonic()
            for name, video in list(self._live.items()):
                if not video.is_busy and now - video.used > idle:
                    background.start(self._end(name))  # one that fails or takes long holds up no other
                    LOGGER.info("session removed", extra={"fields": {"idle_seconds": idle}})
