"""A service without a Triton: its searches find the objects of test/images/shapes.jpg, and it tracks moving discs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from support import clip
from support.conditions import wait_until
from support.running_service import NOBODY, RunningService, made_up_models, running_service

from triton_sam._common.bundle import bundled
from triton_sam.client.concepts import FoundInstances
from triton_sam.client.session_image import RemoteImage, SessionImage
from triton_sam.concepts.instances import Instance
from triton_sam.concepts.query import Query, check_parameters
from triton_sam.errors import PromptError
from triton_sam.everything.search import FoundMask, last_pixels
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.masks import mask_to_box
from triton_sam.masks.segment import VideoSegment
from triton_sam.service.engine import Engine, Pair
from triton_sam.service.everything import FinderUpdate

POINTS_EACH = 16
SCORES = (0.95, 0.8, 0.6, 0.4, 0.2, 0.15)
"""The scores of the instances, highest first."""
NOTHING = "nothing"
"""A text without instances."""


def shapes() -> list[np.ndarray]:
    """Return the masks of the drawn objects, bool (600,800) each."""
    labels = np.asarray(Image.open(bundled("test/images") / "shapes_labels.png"))
    return [labels == number for number in np.unique(labels) if number]


def found(number: int, mask: np.ndarray) -> FoundMask:
    """Return an object as a result of a search."""
    y, x = np.argwhere(mask)[mask.sum() // 2]
    height, width = mask.shape
    return FoundMask(
        bits=np.packbits(mask),
        score=0.9 - number / 100,
        stability=0.97,
        point=(float(x), float(y)),
        box=last_pixels(mask),
        crop=(0, 0, width, height),
        size=(width, height),
    )


class FakeFinder:
    """The finder of a service.

    Attributes:
        asked: options and clean-up of each search.
        steps: number of computed steps.
        closed: number of searches that have ended in any way.
        failure: error that is raised after the first step.
        removes: whether the last object replaces the first one.
        finds: whether objects are found.
        limit: a search waits after so many steps until the limit is raised or None.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], Any]] = []
        self.steps = self.closed = 0
        self.reset()

    def reset(self) -> None:
        self.limit: int | None = None
        self.failure: Exception | None = None
        self.removes = False
        self.finds = True

    async def __call__(self, client, image, content, options, cleanup) -> AsyncGenerator[FinderUpdate, None]:
        self.asked.append((dict(options), cleanup))
        masks = shapes() if self.finds else []
        total = POINTS_EACH * max(1, len(masks))
        try:
            for number, mask in enumerate(masks):
                while self.limit is not None and number >= self.limit:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # the test is in another thread
                self.steps += 1
                if self.failure is not None and number:
                    raise self.failure
                removed = [0] if self.removes and number == len(masks) - 1 else []
                yield FinderUpdate(POINTS_EACH * (number + 1), total, {number: found(number, mask)}, removed)
            if not masks:
                yield FinderUpdate(total, total, detail="no mask has a predicted IoU of 0.88: lower pred_iou_thresh")
        finally:
            self.closed += 1


async def at_once() -> None:
    """Take no time."""


class FakeWords:
    """The client of a service. It finds the shapes for every text except NOTHING, without those in negative boxes.

    Attributes:
        asked: query, image and example of each search.
        ended: number of searches that have ended in any way.
        step: awaited in each search; it may fail.
        gate: if set, each search waits for this event.
        failure: error of each search.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[Query, Any, Any]] = []
        self.ended = 0
        self.step = at_once
        self.reset()

    def reset(self) -> None:
        self.asked.clear()
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None

    async def find_async(
        self, text=None, *, boxes=None, box_labels=None, image=None, example=None, **parameters
    ) -> FoundInstances:
        query = check_parameters(text, boxes, box_labels, parameters)
        self.asked.append((query, image, example))
        try:
            await self.step()
            if self.gate is not None:
                await self.gate.wait()
            if self.failure is not None:
                raise self.failure
            content = image if isinstance(image, bytes) else b""
            return FoundInstances(_instances(query), held(content, (800, 600)))
        finally:
            self.ended += 1

    async def aclose(self) -> None:
        return


def held(content: bytes, size: tuple[int, int], name: str = "sam3") -> SessionImage:
    """Return an image in a server's cache."""
    return SessionImage(name, f"{name}_encoder", size, {}, RemoteImage(content, "0" * 32))


def _instances(query: Query) -> list[Instance]:
    found = []
    for index, label in enumerate(query.labels()):
        place = 0
        for mask, score in zip(shapes() if label != NOTHING else [], SCORES, strict=False):
            box = mask_to_box(mask) or (0, 0, 0, 0)
            if score > query.threshold and not _is_refused(box, query) and place < (query.limit or 200):
                x1, y1, x2, y2 = (value + 0.25 for value in box)
                found.append(Instance(mask, score, None, index, place, (x1, y1, x2, y2), label=label))
                place += 1
    return found


def _is_refused(box: tuple[int, int, int, int], query: Query) -> bool:
    """Return whether the centre of a box is inside a negative example."""
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    refused = query.boxes[query.box_labels == 0]
    return bool(np.any((refused[:, 0] <= x) & (x <= refused[:, 2]) & (refused[:, 1] <= y) & (y <= refused[:, 3])))


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
        await self._client.step()
        if len({*self.prompts, object_id}) > self._client.most_objects:
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
            await self._client.step()
            yield frame, {object_id: self._segment(object_id, frame) for object_id in sorted(self.prompts)}

    async def remove(self, object_id):
        del self.prompts[object_id]

    async def clear(self, frame, object_id):
        del self.prompts[object_id][frame]

    async def reset(self):
        self.prompts.clear()

    async def aclose(self):
        self.is_closed = True
        await self._client.step()

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
        step: awaited in each call and before the masks of each frame; it may fail.
    """

    def __init__(self) -> None:
        self.videos: list[FakeVideo] = []
        self.step = at_once
        self.reset()

    def reset(self) -> None:
        self.most_objects = 64
        self.seconds = 0.0
        self.limit: int | None = None
        self.failure: Exception | None = None

    async def open(self, source: Any, *, every: int = 1) -> FakeVideo:
        await self.step()
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


@dataclass
class FakeClients:
    """A running service, and what it calls in place of Triton."""

    service: RunningService
    finder: FakeFinder
    words: FakeWords
    tracker: FakeVideoClient

    def reset(self) -> None:
        """End what waits or fails."""
        for each in (self.finder, self.words, self.tracker):
            each.reset()


async def _embed(engine: Engine, image: Any, pair: Pair) -> ImageEmbeddings:
    """Return embeddings that no Triton has: clicks fail."""
    image.keep(pair.origin, held(image.content, image.size, pair.name))
    return image.embeddings[pair.origin]


@contextlib.contextmanager
def service_with_fakes(*, words: bool = False, videos: bool = True, **options: Any) -> Iterator[FakeClients]:
    """Run a service with the model "sam2", which tracks ``videos``, and with ``words`` "sam3", which finds words."""
    finder, found_words, tracker = FakeFinder(), FakeWords(), FakeVideoClient()

    def client(engine: Engine, pair: Pair, *, keeps_images: bool) -> Any:
        return found_words if pair.finds_concepts else Engine.client(engine, pair, keeps_images=keeps_images)

    fakes: dict[str, Callable[..., Any]] = {"client": client, "embed": _embed}
    fakes["_pairs"] = made_up_models(words=words, videos=videos)
    with running_service(NOBODY, fakes, **options) as service:
        service.app.state.searches.find = finder
        service.app.state.videos.connect = lambda *_: tracker
        yield FakeClients(service, finder, found_words, tracker)
