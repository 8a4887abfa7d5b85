"""A service without a Triton whose model finds words. The instances are the objects of test/images/shapes.jpg."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from support.fake_everything import FakeFinder, shapes

from triton_sam.client.concepts import FoundInstances
from triton_sam.client.session_image import RemoteImage, SessionImage
from triton_sam.concepts.instances import Instance
from triton_sam.concepts.query import Query, check_parameters
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.masks import mask_to_box
from triton_sam.service.engine import Engine, Pair

SCORES = (0.95, 0.8, 0.6, 0.4, 0.2)
"""The scores of the instances, highest first."""
NOTHING = "nothing"
"""A text without instances."""


class FakeWords:
    """The client of a service. It finds the shapes for every text except NOTHING, without those in negative boxes.

    Attributes:
        asked: query, image and example of each search.
        ended: number of searches that have ended in any way.
        gate: if set, each search waits for this event.
        failure: error of each search.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[Query, Any, Any]] = []
        self.ended = 0
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


def held(content: bytes, size: tuple[int, int]) -> SessionImage:
    """Return an image in a server's cache."""
    return SessionImage("sam3", "sam3_encoder", size, {}, RemoteImage(content, "0" * 32))


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


async def _embed(engine: Engine, image: Any, pair: Pair) -> ImageEmbeddings:
    image.keep(pair.origin, held(image.content, image.size))
    return image.embeddings[pair.origin]


@contextlib.contextmanager
def service_with_words(video_client: Any = None, **options: Any) -> Iterator[Any]:
    """Run a service without a Triton, whose model "sam3" finds words; yields the service and its client.

    Both models find everything by a FakeFinder. With a video client, the model "sam2" tracks videos by it.
    """
    from support.running_service import NOBODY, made_up_models, running_service

    client = FakeWords()
    fakes: dict[str, Callable[..., Any]] = {
        "_pairs": made_up_models(words=True, videos=video_client is not None),
        "embed": _embed,
        "client": lambda engine, pair, *, keeps_images: client,
    }
    with running_service(NOBODY, fakes, **options) as service:
        service.app.state.searches.find = FakeFinder()
        if video_client is not None:
            service.app.state.videos.connect = lambda *_: video_client
        yield service, client
