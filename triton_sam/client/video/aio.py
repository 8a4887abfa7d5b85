"""The asynchronous client of videos."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, cast

from ...errors import ConfigurationError
from ...families import get_family
from ...inputs.prompts import PromptArray
from ...inputs.video.base import FrameSource
from ...inputs.video.opening import VideoSource, open_frames
from ...inputs.video.stream import DEFAULT_WINDOW
from ...masks.video_segment import VideoSegment
from ...transport.aio import AsyncTransport
from ...transport.base import AsyncBaseTransport, Tensors
from ...transport.options import Busy
from ...transport.url import parse_url
from ...wire import video as wire
from ...wire.pair import Request
from ..dispatcher import Dispatcher
from ..drivers import Result, carry_async
from ..flows import Flow
from ..lanes import Lanes
from ..spellings import also_spelled
from .base import OnProgress, Pass, Segments, VideoCore, VideoOptions, row_outputs
from .lookahead import look_ahead_async
from .requests import Operation, VideoModel

CONNECTIONS = 16
"""Maximum number of requests on the wire at a time, over all videos of a client."""


class AsyncSAM2VideoClient:
    """Follows objects through videos on a Triton server: the twin of SAM2VideoClient for asyncio.

    All I/O runs in a separate thread, so that any event loop can use the client.

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
        transport: AsyncBaseTransport | None = None,
    ) -> None:
        self._model = VideoModel(get_family(model_type), variant)
        self._server = server = parse_url(url)
        if transport is None:
            transport = AsyncTransport(
                server,
                timeout=timeout,
                retries=retries,
                headers=headers,
                ca_certs=ca_certs,
                busy=busy,
                connections=CONNECTIONS,
            )
        self._dispatcher = Dispatcher(transport, Lanes())
        self._closing: set[asyncio.Task[None]] = set()
        weakref.finalize(self, self._dispatcher.close_when_forgotten)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._server)!r}, model={self._model.name!r})"

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
        opening = asyncio.create_task(asyncio.to_thread(open_frames, source, quality, window))
        try:
            frames = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_frames)
            raise
        with contextlib.ExitStack() as opened:
            opened.callback(frames.close)
            video = AsyncVideo(self, self._model, frames, options, self._dispatcher)
            opened.pop_all()
            opened.callback(self._close_later, video)
            await video._start()  # noqa: SLF001 - a part of opening
            opened.pop_all()
        return video

    def _close_later(self, video: AsyncVideo) -> None:
        """Close a video whose opening failed or was cancelled: the server may start its session nevertheless."""
        closing = asyncio.create_task(video.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._forget_closing)

    def _forget_closing(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled():
            closing.exception()  # retrieve the error: asyncio would log it

    async def is_ready(self) -> bool:
        """Whether the server answers and has the video model of this client ready."""
        return await asyncio.wrap_future(self._dispatcher.is_ready(self._model.name))

    async def aclose(self) -> None:
        """Close the connections. Close the videos first."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.shield(asyncio.wrap_future(self._dispatcher.close()))

    async def __aenter__(self) -> AsyncSAM2VideoClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncVideo(VideoCore):
    """An open video, see AsyncSAM2VideoClient.open(). Use it on one event loop. Calls wait for each other.

    A call that is cancelled still ends on the server: its state is never in doubt, and at most one frame is computed.
    """

    def __init__(
        self,
        client: AsyncSAM2VideoClient,
        model: VideoModel,
        source: FrameSource,
        options: VideoOptions,
        dispatcher: Dispatcher,
    ) -> None:
        super().__init__(model, source, options)
        self._client = client  # which closes its connections when nobody refers to it any more
        self._dispatcher = dispatcher
        self._turns = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()

    async def _start(self) -> None:
        await self._carried(self._flows.start())

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
        operation = self._prompt(frame, object_id, points, labels, box, mask, clear_old_points)
        index, checked_id = operation.arguments["frame_index"], operation.arguments["object_id"]
        answer = await self._done(operation, row_outputs(logits))
        return (await asyncio.to_thread(self._segments, answer, index))[checked_id]

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
        return self._propagate(self._pass(start, count, reverse, row_outputs(logits), on_progress))

    async def clear(self, frame: int, object_id: int) -> None:
        """Remove the prompts of an object at a frame. See Video.clear()."""
        await self._done(self._clearing(frame, object_id))

    async def remove(self, object_id: int) -> None:
        """Remove an object. See Video.remove()."""
        await self._done(self._removal(object_id))

    async def reset(self) -> None:
        """Remove all objects. The frames stay. See Video.reset()."""
        await self._done(Operation(wire.RESET_SESSION))

    async def aclose(self) -> None:
        """End the session and close the source. Errors of the server are ignored."""
        self.cancel()
        try:
            await self._carried(self._flows.close())
        finally:
            await asyncio.to_thread(self._frames.source.close)

    async def __aenter__(self) -> AsyncVideo:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _propagate(self, current: Pass) -> AsyncGenerator[tuple[int, Segments], None]:
        indexes = look_ahead_async(current.order, self._prepare_and_send, self._options.ahead, current.stop)
        async with contextlib.aclosing(indexes):
            done = 0
            async for index in indexes:
                answer = await self._done(self._tracking(index, current.reverse, is_first=done == 0), current.outputs)
                done += 1
                if current.on_progress is not None:
                    current.on_progress(done, current.total)
                segments = await asyncio.to_thread(self._segments, answer, index)
                yield self._frames.outside(index), segments

    async def _prepare_and_send(self, index: int, sends: bool) -> bool:
        if not await asyncio.to_thread(self._prepare, index):
            return False
        if sends:
            await carry_async(self._flows.upload(index), self._send, asyncio.to_thread)
        return True

    async def _done(self, operation: Operation, outputs: tuple[str, ...] = ()) -> Tensors:
        """Do an operation and note it. A cancelled caller does not stop it."""
        return await self._carried(self._flows.run(operation, outputs), operation)

    async def _carried(self, flow: Flow[Result], operation: Operation | None = None) -> Result:
        call = asyncio.create_task(self._carry(flow, operation))
        self._calls.add(call)
        call.add_done_callback(self._forget_call)
        return await asyncio.shield(call)

    async def _carry(self, flow: Flow[Result], operation: Operation | None) -> Result:
        async with self._turns:
            try:
                result = await carry_async(flow, self._send, asyncio.to_thread)
            finally:
                flow.close()
            if operation is not None:
                self._note(operation, cast(Tensors, result))
        return result

    def _forget_call(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # retrieve the error: asyncio would log it if the caller was cancelled

    async def _send(self, request: Request) -> Tensors:
        return await asyncio.wrap_future(self._dispatcher.infer(request))


def _close_frames(opening: asyncio.Task[FrameSource]) -> None:
    """Close a source whose opener was cancelled meanwhile."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
