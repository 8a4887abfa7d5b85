"""A service without a Triton: its searches find the objects of test/images/shapes.jpg, and it tracks moving discs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from support import clip
from support.concept_server import Arrays, ConceptServer
from support.conditions import PATIENCE, wait_until
from support.running_service import RunningService, made_up_models, running_service

from triton_sam._common.bundle import bundled
from triton_sam.client.session_image import RemoteImage, SessionImage
from triton_sam.concepts.instances import instance_mask
from triton_sam.concepts.query import Query, read_query
from triton_sam.errors import PromptError
from triton_sam.everything.search import FoundMask, last_pixels
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.masks import mask_to_box
from triton_sam.masks.segment import VideoSegment
from triton_sam.service.engine import Engine, Pair
from triton_sam.service.everything import FinderUpdate
from triton_sam.wire import contract

POINTS_EACH = 16
SCORES = (0.9375, 0.8125, 0.625, 0.375, 0.1875, 0.125)
"""The scores of the instances, highest first, up to the rounding of exp()."""
SIZE = (800, 600)
NOTHING = "nothing"
"""Texts that begin with it have no instances."""


@functools.cache
def _logits() -> np.ndarray:
    """Return the logits of the drawn objects, (N,288,288)."""
    labels = np.asarray(Image.open(bundled("test/images") / "shapes_labels.png"))
    drawn = [Image.fromarray(labels == number).convert("L") for number in np.unique(labels) if number]
    small = [np.asarray(each.resize((288, 288), Image.Resampling.BOX), np.float32) for each in drawn]
    return np.stack(small) / 12.75 - 10


@functools.cache
def shapes() -> list[np.ndarray]:
    """Return the masks of the drawn objects, bool (600,800) each."""
    return [instance_mask(logits, SIZE, 0.5) for logits in _logits()]


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


class WordServer(ConceptServer):
    """A server whose SAM3 finds the shapes for all texts except NOTHING, without those in negative boxes.

    Attributes:
        gate: searches wait for this event.
        failure: error of each search.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before = self._hold
        self.gate = threading.Event()
        self.reset()

    def reset(self) -> None:
        self.requests.clear()
        self.gate.set()
        self.failure: Exception | None = None

    def queries(self) -> list[Query]:
        """The query of each search."""
        return [read_query(each.inputs[contract.FIND][0]) for each in self.requests if contract.FIND in each.inputs]

    def tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = np.array([[not text.startswith(NOTHING), 0] for text in texts], np.int64)
        return ids, np.ones_like(ids)

    def _hold(self, number: int) -> None:
        if contract.FIND in self.requests[number].inputs:
            self.gate.wait(PATIENCE)
            if self.failure is not None:
                raise self.failure

    def draw(self, inputs: Arrays) -> np.ndarray:
        return _logits()[None, inputs["mask_queries"][0, :, 0].astype(int)]

    def detect(self, inputs: Arrays) -> Arrays:
        count, number = len(inputs["text_features"]), len(_logits())
        boxes = np.array([mask_to_box(mask) for mask in shapes()]) + 0.25
        scores = np.array(SCORES[:number])
        logits = np.tile(np.log(scores / (1 - scores)).astype(np.float32), (count, 1))
        logits[inputs["text_features"][:, 0, 0] == 0] = -30
        for x, y, width, height in inputs["input_boxes"][0][inputs["input_boxes_labels"][0] == 0] * (SIZE * 2):
            middles = (boxes[:, :2] + boxes[:, 2:]) / 2
            logits[:, np.all(np.abs(middles - (x, y)) <= (width / 2, height / 2), axis=1)] = -30
        return {
            "pred_boxes": np.tile(boxes / (SIZE * 2), (count, 1, 1)).astype(np.float32),
            "pred_logits": logits,
            "presence_logits": np.full((count, 1), 30, np.float32),
            "mask_queries": np.tile(np.arange(number, dtype=np.float32)[:, None], (count, 1, 1)),
            "mask_features": np.zeros((count, 4), np.float32),
        }


def held(content: bytes, size: tuple[int, int], name: str = "sam3") -> SessionImage:
    """Return an image in a server's cache."""
    return SessionImage(name, f"{name}_encoder", size, {}, RemoteImage(content, "0" * 32))


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
    words: WordServer
    tracker: FakeVideoClient

    def reset(self) -> None:
        """End what waits or fails."""
        for each in (self.finder, self.words, self.tracker):
            each.reset()


async def _embed(engine: Engine, image: Any, pair: Pair) -> ImageEmbeddings:
    """Return embeddings that no Triton has: clicks fail."""
    if pair.finds_concepts:
        return await Engine.embed(engine, image, pair)
    image.keep(pair.origin, held(image.content, image.size, pair.name))
    return image.embeddings[pair.origin]


@contextlib.contextmanager
def service_with_fakes(*, words: bool = False, videos: bool = True, **options: Any) -> Iterator[FakeClients]:
    """Run a service with the model "sam2", which tracks ``videos``, and with ``words`` "sam3", which finds words."""
    finder, server, tracker = FakeFinder(), WordServer(), FakeVideoClient()
    fakes: dict[str, Callable[..., Any]] = {"embed": _embed, "_pairs": made_up_models(words=words, videos=videos)}
    with server, running_service(server.url, fakes, **options) as service:
        service.app.state.searches.find = finder
        service.app.state.videos.connect = lambda *_: tracker
        yield FakeClients(service, finder, server, tracker)
