"""Requests previews, masks, and long jobs from a server, in its own thread."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from ..._common.lru import ByteLru
from ..._common.text import one_line
from ...client.speculative import SpeculativeSAM2Client
from ...client.sync import SamTritonClient
from ...client.video.sync import SAM2VideoClient
from ...errors import ModelNotReadyError, SamError
from ...inputs.embeddings import ImageEmbeddings
from ...masks.resize import full_size_masks
from ...tiles import LargeImageClient
from .jobs import (
    Ended,
    Event,
    Masks,
    NewObjects,
    Preview,
    Stopped,
    Tell,
    follow,
    large_patch,
    progress_of,
)
from .layers import Patch, patch_of
from .sources import Key, Plane, Prompt, Source

KEPT = 32
"""Maximum number of planes whose embeddings are kept."""
PREVIEW = "preview"


@dataclass(frozen=True)
class Model:
    """A model pair: its family ("sam2"), and its name ("sam2", "sam2.1_large")."""

    family: str
    name: str


def models_at(url: str | None) -> list[Model]:
    with SamTritonClient(url, timeout=10.0, retries=0) as client:
        variants = client.models().variants
    found = [Model(family, name) for family, names in variants.items() for name in names]
    if not found:
        raise ModelNotReadyError("the server has no models ready: see `triton-sam doctor`")
    return sorted(found, key=lambda each: each.family != "sam2")


class Clients:
    """The clients of one model pair, created on first use."""

    def __init__(self, url: str | None, model: Model) -> None:
        self._url, self._model = url, model
        self._variant = None if model.name == model.family else model.name
        self.clicks = SpeculativeSAM2Client(url, model.family, model_name=self._variant, busy="wait")
        self.calls = SamTritonClient(url, model.family, model_name=self._variant, busy="wait")

    def video(self) -> SAM2VideoClient:
        """Return a new video client; the caller closes it."""
        return SAM2VideoClient(self._url, self._variant, model_type=self._model.family)

    def close(self) -> None:
        self.clicks.close()
        self.calls.close()


class Requests:
    """Requests the masks of one layer. No method blocks, and any thread may call them. close() also closes the clients.

    Only the newest mouse position and each object's newest prompt count. Only one job runs at a time.
    """

    def __init__(self, clients: Clients, source: Source, tell: Tell) -> None:
        self._clients, self._source, self._send = clients, source, tell
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="triton-sam-napari", daemon=True)
        self._thread.start()
        self._counter = itertools.count()
        self._newest: dict[str, int] = {}
        self._planes: ByteLru[Plane, asyncio.Task[ImageEmbeddings]] = ByteLru(KEPT)
        self._large: dict[Plane, LargeImageClient] = {}
        self._turns: dict[bool, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._job: asyncio.Task[None] | None = None
        self._stop = threading.Event()

    def prepare(self, plane: Plane) -> None:
        """Encode a plane now, so that the first click is fast. Large planes are encoded part by part."""
        if not self._source.is_large:
            self._call(lambda: self._start(self._encoded(plane)))

    def preview(self, plane: Plane, prompt: Prompt) -> None:
        self._call(lambda: self._start(self._preview(plane, prompt, self._ticket(PREVIEW))))

    def leave(self) -> None:
        """Cancel the preview, because the mouse has left."""
        self._call(lambda: self._ticket(PREVIEW))

    def segment(self, plane: Plane, number: int, prompt: Prompt) -> None:
        lane = _lane(plane, number)
        self._call(lambda: self._start(self._segment(plane, number, prompt, self._ticket(lane))))

    def forget(self, plane: Plane, number: int) -> None:
        """Remove the mask of an object without prompts."""

        def work() -> None:
            self._ticket(_lane(plane, number))
            self._tell(Masks(plane, {number: None}))

        self._call(work)

    def everything(self, plane: Plane, **parameters: Any) -> None:
        """Find all objects of a plane; see SamTritonClient.everything() for the parameters."""
        self._call(lambda: self._start_job(self._everything(plane, parameters)))

    def find(self, plane: Plane, texts: list[str], threshold: float) -> None:
        self._call(lambda: self._start_job(self._find(plane, texts, threshold)))

    def track(self, prompts: Mapping[Key, Prompt], plane: Plane, axis: int) -> None:
        """Follow objects along an axis of the stack, from the first plane with a prompt in both directions."""
        self._call(lambda: self._start_job(self._track(dict(prompts), plane, axis)))

    def cancel(self) -> None:
        """Cancel the job, and keep the objects that it has found."""

        def work() -> None:
            self._stop.set()
            if self._job is not None and not self._source.is_large:
                self._job.cancel()

        self._call(work)

    def close(self) -> None:
        """Cancel all work, close the clients, and send no more events."""
        self._is_closed = True

        async def end() -> None:
            self._stop.set()
            tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._loop.stop()

        self._call(lambda: self._loop.create_task(end()))

    def _run(self) -> None:
        self._loop.run_forever()
        self._clients.close()
        self._loop.close()  # without waiting for a thread that still reads the layer, or waits for the server

    def _tell(self, event: Event) -> None:
        if not self._is_closed:
            self._send(event)

    def _call(self, work: Callable[[], Any]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    def _ticket(self, lane: str) -> tuple[str, int]:
        """Return a new ticket of a lane, which makes all earlier requests of the lane stale."""
        self._newest[lane] = number = next(self._counter)
        return lane, number

    def _is_stale(self, ticket: tuple[str, int]) -> bool:
        return self._newest[ticket[0]] != ticket[1]

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._clicked)

    def _clicked(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tell(Ended(_line(error), is_job=False))

    def _start_job(self, work: Coroutine[Any, Any, None]) -> None:
        if self._job is not None:
            work.close()
            self._tell(Ended("one job at a time: cancel the other one first", is_job=False))
            return
        self._stop = threading.Event()
        self._job = self._loop.create_task(work)
        self._job.add_done_callback(self._job_ended)

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        self._job = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or isinstance(error, Stopped):
            self._tell(Ended("cancelled"))
        elif error is not None:
            self._tell(Ended(_line(error)))

    async def _encoded(self, plane: Plane) -> ImageEmbeddings:
        """Return the embeddings of a plane. Concurrent calls share the request."""
        task = self._planes.get(plane)
        if task is None:
            task = self._loop.create_task(self._encode(plane))
            self._planes.put(plane, task)
        await asyncio.wait([task])
        if task.cancelled() or task.exception() is not None:
            self._planes.remove(plane)  # so that the next click tries again
        return task.result()

    async def _encode(self, plane: Plane) -> ImageEmbeddings:
        return await self._clients.clicks.encode_async(await asyncio.to_thread(self._source.pixels, plane))

    async def _preview(self, plane: Plane, prompt: Prompt, ticket: tuple[str, int]) -> None:
        patch = await self._patch(plane, prompt, ticket)
        if not self._is_stale(ticket):
            self._tell(Preview(plane, patch))

    async def _segment(self, plane: Plane, number: int, prompt: Prompt, ticket: tuple[str, int]) -> None:
        patch = await self._patch(plane, prompt, ticket)
        if not self._is_stale(ticket):
            self._tell(Masks(plane, {number: patch}))

    async def _patch(self, plane: Plane, prompt: Prompt, ticket: tuple[str, int]) -> Patch | None:
        arguments = prompt.within(self._source.size).arguments()
        if self._source.is_large:
            return await self._large_patch(plane, arguments, ticket)
        image = await self._encoded(plane)
        if self._is_stale(ticket):
            return None
        clicks = self._clients.clicks
        _, task = await clicks.predict_async(session_id=ticket[0], image=image, **arguments)
        logits, _ = await task
        return await asyncio.to_thread(
            lambda: patch_of(*full_size_masks(logits[0, 0], self._source.size, clicks.family))
        )

    async def _large_patch(self, plane: Plane, arguments: dict[str, Any], ticket: tuple[str, int]) -> Patch | None:
        """Request a mask of a large plane. Clicks wait for each other, and so do mouse positions."""
        async with self._turns.setdefault(ticket[0] == PREVIEW, asyncio.Lock()):
            if self._is_stale(ticket):
                return None
            client = self._large_client(plane)
            (found,) = await asyncio.to_thread(lambda: client.segment(**arguments))
            return await asyncio.to_thread(large_patch, found)

    def _large_client(self, plane: Plane) -> LargeImageClient:
        if plane not in self._large:
            self._large[plane] = LargeImageClient(self._clients.calls, self._source.large(plane))
        return self._large[plane]

    async def _everything(self, plane: Plane, parameters: dict[str, Any]) -> None:
        told, reason = progress_of(self._tell, self._stop), ""
        if self._source.is_large:
            search = self._large_client(plane).everything
            patches = await asyncio.to_thread(lambda: _kept(map(large_patch, search(progress=told, **parameters))))
        else:
            image = Image.fromarray(await asyncio.to_thread(self._source.pixels, plane))
            found = await self._clients.clicks.everything_async(
                image, progress=lambda step: told(step.done, step.total), **parameters
            )
            patches = await asyncio.to_thread(lambda: _kept(patch_of(each.mask) for each in found))
            reason = f": {found.reason}" if not patches else ""
        self._tell(NewObjects(plane, patches))
        self._tell(Ended(f"{len(patches)} objects found{reason}"))

    async def _find(self, plane: Plane, texts: list[str], threshold: float) -> None:
        if self._source.is_large:
            raise SamError("words are searched in images of up to 4096 pixels a side: crop the layer")
        family = self._clients.clicks.family
        if not family.concepts:
            raise SamError(f'{family.name} cannot search words: choose a SAM3 model, and press "Segment this layer"')
        pixels = await asyncio.to_thread(self._source.pixels, plane)
        found = await self._clients.clicks.find_async(texts, image=pixels, threshold=threshold)
        patches = await asyncio.to_thread(lambda: _kept(patch_of(each.mask) for each in found))
        self._tell(NewObjects(plane, patches))
        self._tell(Ended(f"{len(patches)} instances found"))

    async def _track(self, prompts: dict[Key, Prompt], plane: Plane, axis: int) -> None:
        if self._source.is_large:
            raise SamError("objects are tracked in planes of up to 4096 pixels a side: crop the layer")
        frames = self._source.frames(plane, axis)
        count = await asyncio.to_thread(follow, self._clients.video, frames, prompts, self._tell, self._stop)
        self._tell(Ended(f"{count} planes done"))


def _kept(patches: Iterable[Patch | None]) -> list[Patch]:
    return [each for each in patches if each is not None]


def _lane(plane: Plane, number: int) -> str:
    return f"{plane} {number}"


def _line(error: BaseException) -> str:
    """Return an error as one line. A library that reads a layer may raise any error, even without a message."""
    if isinstance(error, SamError):
        return one_line(error)
    return f"the layer cannot be read: {one_line(error) if str(error).strip() else 'its reader gives no reason'}"
