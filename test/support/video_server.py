"""The video model in this process, with faults of a server.

Its networks are those of `support.fake_tracking`: each mask depends on the frame, the prompts and the last outputs. A
client that repeats too little, too much, or in another order thus gets other masks.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from support.conditions import PATIENCE
from support.fake_tracking import FRAME_BYTES, NAMES, SIDE, FakeModels, computed_by
from support.in_process import Arrays, InProcess
from support.pb_utils import Compute, Request

from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.client.video.video import Video
from triton_sam.errors import ServerUnreachableError
from triton_sam.wire import video as wire

MODEL = "sam2_video"


class VideoServer(InProcess):
    """A server of one video model.

    Args:
        compute: computes its networks; None: those of `support.fake_tracking`.
        cache: capacity of its cache in frames.
        limits: parameters of the model.

    Attributes:
        tracked: all frames computed by tracking.
    """

    def __init__(self, compute: Compute | None = None, cache: int = 1000, **limits: int) -> None:
        super().__init__(compute or computed_by(FakeModels()))
        numbers = {name: str(value) for name, value in {"image_size": SIDE, **limits}.items()}
        self._model = self.add_video_model("sam2", family="SAM2", **numbers, **NAMES)._model
        self._model.images.cache.limit = cache * FRAME_BYTES
        self._steps: set[tuple[bytes, int]] = set()
        self.tracked: list[int] = []

    @property
    def sessions(self) -> dict[str, Any]:
        sessions: dict[str, Any] = self._model.sessions.by_id
        return sessions

    def sent_frames(self) -> list[int]:
        """Return the indexes of the received frames, in order."""
        numbers = range(len(self.requests))
        return [index for number in numbers for index in self.arguments(number).get("frame_indexes", [])]

    def lose_sessions(self) -> None:
        """Drop all sessions, as a restart does."""
        self.sessions.clear()
        self.lose_frames()

    def lose_frames(self) -> None:
        """Drop all frames, as a small cache does."""
        while self._model.images.cache.remove_oldest():
            pass

    def answer(self, model: str, request: Request, number: int) -> Arrays:
        """Answer a request, and record the frame that it computes."""
        answer = super().answer(model, request, number)
        if self.operation(number) == wire.PROPAGATE:
            self._note(number)
        return answer

    def _note(self, number: int) -> None:
        given = self.arguments(number)
        step = self.requests[number].inputs[wire.SESSION_ID][0], given["step"]
        if step not in self._steps:
            self._steps.add(step)
            self.tracked.append(given["frame_index"])


def unreachable() -> ServerUnreachableError:
    return ServerUnreachableError("gone")


def open_video(server: InProcess, source: Any, **options: Any) -> Video:
    """Open a video with the sync client."""
    return SAM2VideoClient(server.url, retries=0).open(source, **options)


class Camera:
    """A stream that waits after its first frame until `comes` is set, in `thread`."""

    def __init__(self, frames: Sequence[Any]) -> None:
        self.waits, self.comes = threading.Event(), threading.Event()
        self._frames = frames

    def __iter__(self) -> Iterator[Any]:
        yield from self._frames[:1]
        self.thread = threading.current_thread()
        self.waits.set()
        self.comes.wait(PATIENCE)
        yield from self._frames[1:]


class FromThreads:
    """A video of the async client with the methods of the sync client, so that both run the same tests."""

    def __init__(self, server: InProcess, source: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client = self._wait(self._connect(server.url))
        try:
            self._video = self._wait(self._client.open(source, **options))
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> FromThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._video.aclose())
        self._end()

    def _end(self) -> None:
        self._wait(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._video, name)
        if not inspect.iscoroutinefunction(value):
            return value
        return lambda *args, **options: self._wait(value(*args, **options))

    def propagate(self, *args: Any, **options: Any) -> Iterator[Any]:
        return self._each(self._video.propagate(*args, **options))

    def _each(self, passed: Any) -> Iterator[Any]:
        try:
            while (item := self._wait(anext(passed, None))) is not None:
                yield item
        finally:
            self._wait(passed.aclose())

    @staticmethod
    async def _connect(url: str) -> AsyncSAM2VideoClient:
        return AsyncSAM2VideoClient(url, retries=0)

    def _wait(self, call: Any) -> Any:
        async def run() -> Any:
            return await call

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)


FACES = {"sync": open_video, "async": FromThreads}
"""Functions that open a video of either client."""
