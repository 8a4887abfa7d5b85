"""A video client without a Triton: each object is a disc that moves as that of `support.clip`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from support import clip
from support.conditions import wait_until

from triton_sam.errors import PromptError
from triton_sam.masks.segment import VideoSegment


class FakeVideo:
    """A session. A frame takes ``seconds``; a frame beyond ``limit`` takes until the limit is raised."""

    def __init__(self, client: FakeVideoClient, source: Any, every: int) -> None:
        self.every = every
        self.source = source
        self.prompts: dict[int, dict[int, dict[str, Any]]] = {}
        self.computed: list[int] = []
        self.is_closed = False
        self._client = client

    async def add(self, frame, object_id, points=None, labels=None, box=None, mask=None, clear_old_points=True):
        if object_id > self._client.most_objects:
            raise PromptError("max_objects: a session takes 64 objects")
        prompt = {"points": points, "labels": labels, "box": box, "mask": mask, "clear_old_points": clear_old_points}
        self.prompts.setdefault(object_id, {})[frame] = prompt
        return self._segment(object_id, frame)

    async def propagate(self, start=None, count=None, reverse=False) -> AsyncIterator[Any]:
        first = min(frame for frames in self.prompts.values() for frame in frames) if start is None else start
        every = self.every
        end = self.source.num_frames or first + count  # frames that arrive one by one have no known end
        frames = range(first, -1 if reverse else end, -every if reverse else every)
        for number, frame in enumerate(list(frames)[:count], 1):
            self.computed.append(frame)
            await asyncio.sleep(self._client.seconds)
            while self._client.limit is not None and number > self._client.limit:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the test is in another thread
            if self._client.failure is not None:
                raise self._client.failure
            yield frame, {object_id: self._segment(object_id, frame) for object_id in sorted(self.prompts)}

    async def remove(self, object_id):
        del self.prompts[object_id]

    async def clear(self, frame, object_id):
        del self.prompts[object_id][frame]

    async def reset(self):
        self.prompts.clear()

    async def aclose(self):
        self.is_closed = True

    def _segment(self, object_id: int, frame: int) -> VideoSegment:
        at, prompt = min(self.prompts[object_id].items(), key=lambda entry: abs(entry[0] - frame))
        if prompt["mask"] is not None:
            mask = np.roll(prompt["mask"], clip.STEP * (frame - at), axis=1)
        else:
            box = prompt["box"]
            x, y = prompt["points"][0] if box is None else ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
            mask = clip.disc(frame - at, (x, y))
        return VideoSegment(mask, 0.9, None, object_id - 1, object_id=object_id, frame=frame, object_score=5.0)


class FakeVideoClient:
    """The client.

    Attributes:
        videos: all sessions that were opened.
        seconds: how long a frame takes.
        limit: a propagation waits in the frame after so many until the limit is raised or None.
    """

    def __init__(self) -> None:
        self.videos: list[FakeVideo] = []
        self.seconds = 0.0
        self.limit: int | None = None
        self.most_objects = 64
        self.failure: Exception | None = None

    async def open(self, source: Any, *, every: int = 1) -> FakeVideo:
        self.videos.append(FakeVideo(self, source, every))
        return self.videos[-1]

    async def aclose(self) -> None:
        """There is no connection."""


def propagation_of(service: Any, path: str) -> Any:
    """Return the propagation of a video, which is given by its path."""
    return service.app.state.videos.get(path.rpartition("/")[2]).tracking._propagation


@contextlib.contextmanager
def let_go_on(client: FakeVideoClient, propagation: Any) -> Iterator[None]:
    """In the block, something stops a propagation that waits at its limit. It goes on once it has heard of that."""

    is_over = threading.Event()

    def release() -> None:
        wait_until(lambda: propagation._is_stopped or is_over.is_set())
        client.limit = None

    thread = threading.Thread(target=release)
    thread.start()
    try:
        yield
    except BaseException:
        is_over.set()
        raise
    finally:
        thread.join()


@contextlib.contextmanager
def service_with_videos(*, tracks_videos: bool = True, **options: Any) -> Iterator[Any]:
    """Run a service without a Triton, whose video client is a fake one; yields the service and the client."""
    from support.running_service import NOBODY, made_up_models, running_service

    client = FakeVideoClient()
    with running_service(NOBODY, {"_pairs": made_up_models(videos=tracks_videos)}, **options) as service:
        service.app.state.videos.connect = lambda *_: client
        yield service, client
