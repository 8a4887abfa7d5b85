"""The asynchronous client of videos."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any

from ...errors import ConfigurationError
from ...families.base import Size
from ...inputs.prompts import PromptArray
from ...inputs.video.opening import VideoSource, open_frames
from ...inputs.video.sequences import DEFAULT_WINDOW
from ...masks.segment import VideoSegment
from ...transport.base import BaseTransport
from ...transport.options import Busy
from ..aio import InThreads, ended, shielded
from ..spellings import also_spelled
from .frames import VideoOptions, end
from .sync import SAM2VideoClient
from .video import OnProgress, Pass, Segments, Video, row_outputs


class AsyncSAM2VideoClient(InThreads):
    """Follows objects through videos on a Triton server: the twin of SAM2VideoClient for asyncio.

    All calls run in threads, so that any event loop can use the client.

    Examples:
        >>> async with AsyncSAM2VideoClient("localhost:8000") as client, await client.open("clip.mp4") as video:
        ...     await video.add(frame=0, object_id=1, points=[[210, 350]], labels=[1])
        ...     async for frame, segments in video.propagate():
        ...         segments[1].to_png(f"{frame:05}.png")

    Arguments and errors are those of SAM2VideoClient.
    """

    @also_spelled(ConfigurationError, model_name="variant")
    def __init__(
        self,
        url: str | None = None,
        variant: str | None = None,
        *,
        model_type: str = "sam2",
        timeout: float = 60.0,
        retries: int = 2,
        headers: Mapping[str, str] | None = None,
        ca_certs: str | os.PathLike[str] | None = None,
        busy: Busy = "raise",
        transport: BaseTransport | None = None,
    ) -> None:
        self._client = SAM2VideoClient(
            url,
            variant,
            model_type=model_type,
            timeout=timeout,
            retries=retries,
            headers=headers,
            ca_certs=ca_certs,
            busy=busy,
            transport=transport,
        )
        self._videos: weakref.WeakSet[Video] = weakref.WeakSet()
        self._videos_lock = threading.Lock()
        super().__init__(self._client._transport)

    def __repr__(self) -> str:
        return f"Async{self._client!r}"

    async def open(
        self,
        source: VideoSource,
        *,
        quality: int | None = None,
        every: int = 1,
        ahead: int = 2,
        snapshot_every: int = 16,
        window: int = DEFAULT_WINDOW,
    ) -> AsyncVideo:
        """Open a video and start its session. Arguments and errors are those of SAM2VideoClient.open()."""
        options = VideoOptions(quality, every, ahead, snapshot_every, window)
        starts = threading.Lock()  # held from the start of the session, or from a cancellation before it

        def open_video() -> Video:
            with self._threads.not_awaited():  # the first frame of a stream may take long
                frames = open_frames(source, quality, window)
            if not starts.acquire(blocking=False):
                frames.close()
                raise CancelledError
            return self._client._start(frames, options)

        opening = self._threads.submit(open_video)
        try:
            video = await shielded(opening)
        except asyncio.CancelledError:
            if not starts.acquire(blocking=False):  # the server may have started its session
                with contextlib.suppress(ConfigurationError):  # somebody else has closed this client
                    self._start(lambda: opening.result().close())
            raise
        with self._videos_lock:
            self._videos.add(video)
        return AsyncVideo(self, video)

    async def is_ready(self) -> bool:
        """Whether the server answers and has the video model of this client ready."""
        return await self._run(self._client.is_ready)

    def _end_waits(self) -> None:
        with self._videos_lock:
            for video in self._videos:
                video._end()

    async def __aenter__(self) -> AsyncSAM2VideoClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncVideo:
    """An open video, see AsyncSAM2VideoClient.open(). Calls wait for each other.

    A cancelled call still completes on the server, so that the state stays certain; at most one frame is computed.
    """

    def __init__(self, client: AsyncSAM2VideoClient, video: Video) -> None:
        self._client = client  # a client closes its connections when it is garbage-collected
        self._run = client._run_to_its_end
        self._video = video

    @property
    def num_frames(self) -> int | None:
        """Number of frames of the source; None for a stream."""
        return self._video.num_frames

    @property
    def frame_size(self) -> Size:
        """Width and height of the frames in pixels."""
        return self._video.frame_size

    @property
    def object_ids(self) -> list[int]:
        """The ids of the objects, in the order in which they were added."""
        return self._video.object_ids

    @property
    def restored(self) -> int:
        """How often the client has restored the session after the server had lost it."""
        return self._video.restored

    def cancel(self) -> None:
        """End all running passes of propagate() after their current frame, without an error. Any thread may call it."""
        self._video.cancel()

    async def add(
        self,
        frame: int,
        object_id: int,
        points: PromptArray = None,
        labels: PromptArray = None,
        box: PromptArray = None,
        mask: PromptArray = None,
        clear_old_points: bool = True,
        *,
        logits: bool = True,
    ) -> VideoSegment:
        """Add a prompt for one object at one frame, and return its mask there. See Video.add()."""
        arguments = (frame, object_id, points, labels, box, mask, clear_old_points)
        return await self._run(self._video.add, *arguments, logits=logits)

    def propagate(
        self,
        start: int | None = None,
        count: int | None = None,
        reverse: bool = False,
        *,
        logits: bool = True,
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[tuple[int, Segments], None]:
        """Track all objects from frame to frame. See Video.propagate(); use it with ``async for``.

        To stop early, call cancel(), or wrap the generator in ``contextlib.aclosing`` and leave the loop.
        """
        return self._propagate(self._video._pass(start, count, reverse, row_outputs(logits)), on_progress)

    async def clear(self, frame: int, object_id: int) -> None:
        """Remove the prompts of an object at a frame. See Video.clear()."""
        await self._run(self._video.clear, frame, object_id)

    async def remove(self, object_id: int) -> None:
        """Remove an object. See Video.remove()."""
        await self._run(self._video.remove, object_id)

    async def reset(self) -> None:
        """Remove all objects. The frames stay. See Video.reset()."""
        await self._run(self._video.reset)

    async def aclose(self) -> None:
        """End the session and close the source. Errors of the server are ignored."""
        self._video._end()
        try:
            is_closed = await ended(self._client._start(self._video.close))
        except ConfigurationError:
            if self._client._threads.is_inherited:
                raise
            is_closed = False
        if not is_closed:  # somebody has closed the client with its threads
            await asyncio.to_thread(self._video.close)

    async def __aenter__(self) -> AsyncVideo:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _propagate(
        self, current: Pass, on_progress: OnProgress | None
    ) -> AsyncGenerator[tuple[int, Segments], None]:
        async def run(step: Callable[[], Any]) -> Any:
            try:
                return await self._run(step)
            except asyncio.CancelledError:
                end(current.stop)  # otherwise, closing the generator waits for the next frame of a stream
                raise

        tracked = self._video._track(current, self._video._read)
        async with contextlib.aclosing(self._client._each(tracked, run)) as steps:
            done = 0
            async for step in steps:
                done += 1
                if on_progress is not None:  # here and not in the thread that tracks: it may use the event loop
                    on_progress(done, current.total)
                yield step
