"""A search for everything: the objects that it finds, and its task, which sends them as events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...client.speculative import SpeculativeSAM2Client
from ...everything import search
from ...everything.parameters import parameters_of
from ...everything.parts import FoundMask
from ...inputs.embeddings import ImageEmbeddings
from ...masks.cleanup import Cleanup
from ...masks.rle import rle_to_mask
from ...masks.segment import Segment
from .. import problems
from ..budgets import stopping
from ..engine import Engine, Pair
from ..events import Events
from ..problems import Problem, cancelled
from ..schemas import SINGLE_FORMATS, coco_box
from ..store import StoredImage
from .schemas import BareObject, EverythingRequest


@dataclass(frozen=True)
class FoundRegion:
    """One object.

    Args:
        crop_box: x1, y1, x2, y2 of the crop that the point belongs to.
    """

    number: int
    rle: Mapping[str, Any]
    score: float
    stability_score: float
    area: int
    box: tuple[int, int, int, int]
    point: tuple[float, float]
    crop_box: tuple[int, int, int, int]

    def segment(self) -> Segment:
        return Segment(rle_to_mask(self.rle), self.score, None, self.number)


@dataclass(frozen=True)
class FinderUpdate:
    done: int
    total: int
    found: Sequence[FoundRegion] = ()
    removed: Sequence[int] = ()
    detail: str | None = None


Finder = Callable[
    [SpeculativeSAM2Client, ImageEmbeddings, bytes, Mapping[str, Any], Cleanup | None],
    AsyncGenerator[FinderUpdate, None],
]
"""Searches for everything in an image, given its embeddings, encoded bytes, options, and a clean-up of masks.

Closing the generator ends the search, also at Triton.
"""


@dataclass(frozen=True)
class Done:
    """The last event of a search. ``detail`` explains why there are no objects."""

    objects: int
    points: int
    milliseconds: float
    detail: str | None = None


class Search:
    """A running search.

    Attributes:
        events: a ``FinderUpdate`` for each batch of points, and finally ``Done`` or a Problem.
    """

    def __init__(
        self, engine: Engine, image: StoredImage, pair: Pair, request: EverythingRequest, finder: Finder
    ) -> None:
        self.events: Events[FinderUpdate | Done] = Events()
        self._engine = engine
        self._image = image
        self._pair = pair
        self._request = request
        self._finder = finder
        self._end = cancelled()
        self._started = time.monotonic()
        with engine.budgets.searches.take() as place:
            self.task = asyncio.create_task(self._run())
            running = place.pass_on()
        self.task.add_done_callback(lambda _: running.give())

    def stop(self) -> None:
        """Stop, because the service stops. The reader still receives the event ``error``."""
        self._end = stopping()
        self.task.cancel()

    def leave(self) -> None:
        """Stop, also at Triton, because the reader has left."""
        self.events.leave()
        self.task.cancel()

    async def objects(self) -> tuple[list[FoundRegion], Done]:
        """Wait for the end; return all objects and the last event."""
        found: dict[int, FoundRegion] = {}
        async for each in self.events:
            if isinstance(each, Done):
                return list(found.values()), each
            found |= {one.number: one for one in each.found}
            for gone in each.removed:
                found.pop(gone, None)
        raise self._end

    async def write(self, found: Sequence[FoundRegion]) -> list[dict[str, Any]]:
        """Return objects as JSON. Formats other than RLE decode one mask at a time, in a thread."""
        form, tolerance = self._request.format, self._request.tolerance
        if form == "rle":
            return [{**_bare(each), "rle": each.rle} for each in found]

        def write(each: FoundRegion) -> dict[str, Any]:
            return {**_bare(each), form: SINGLE_FORMATS[form].to_json(each.segment(), tolerance)}

        width, height = self._image.size
        return await self._engine.budgets.workers.map(2 * width * height, write, found)

    async def _run(self) -> None:
        seconds = self._engine.settings.search_seconds
        try:
            await asyncio.wait_for(self._search(), seconds)
        except asyncio.CancelledError:
            self.events.leave(self._end)
            raise
        except asyncio.TimeoutError:
            text = f"the search took more than {seconds:g} s: ask for fewer points"
            await self.events.put(Problem(504, text, code="timeout"))
        except Exception as error:  # noqa: BLE001 - the response with status 200 may have started
            await self.events.put(problems.meant_by(error))

    async def _search(self) -> None:
        embeddings = await self._engine.embed(self._image, self._pair)
        request = self._request
        cleanup = None if request.cleanup is None else request.cleanup.to_cleanup()
        client = self._engine.client_of(self._pair, embeddings)
        steps = self._finder(client, embeddings, self._image.content, request.options(), cleanup)
        last, count = FinderUpdate(done=0, total=0), 0
        async with contextlib.aclosing(steps):
            async for last in steps:
                count += len(last.found) - len(last.removed)
                await self.events.put(last)
        milliseconds = round((time.monotonic() - self._started) * 1000, 1)
        await self.events.put(Done(count, last.done, milliseconds, last.detail), None)


async def find(
    client: SpeculativeSAM2Client,
    image: ImageEmbeddings,
    content: bytes,
    options: Mapping[str, Any],
    cleanup: Cleanup | None,
) -> AsyncGenerator[FinderUpdate, None]:
    given = {name: value for name, value in options.items() if name != "points_per_batch"}
    parameters = parameters_of(client.family.name, {**given, "cleanup": cleanup or Cleanup()})
    numbers: dict[FoundMask, int] = {}
    shown: list[FoundMask] = []
    counter = itertools.count()
    done = total = 0
    async with contextlib.aclosing(client.search_steps(content, parameters, image)) as steps:
        async for step in steps:
            if isinstance(step, search.SearchProgress):
                masks, detail, done, total = step.masks(), None, step.done, step.total
            else:
                masks, detail = step.masks, None if step.masks else step.reason
            new, gone = _changes(shown, masks)
            numbers.update(zip(new, counter, strict=False))
            found = await asyncio.to_thread(lambda new: [_found(each, numbers[each]) for each in new], new)
            yield FinderUpdate(done, total, found, [numbers.pop(each) for each in gone], detail)
            shown = masks


def _changes(before: Sequence[FoundMask], now: Sequence[FoundMask]) -> tuple[list[FoundMask], list[FoundMask]]:
    """Return the new masks, and the removed ones."""
    known, left = set(before), set(now)
    return [each for each in now if each not in known], [each for each in before if each not in left]


def _found(mask: FoundMask, number: int) -> FoundRegion:
    segment = mask.segment()
    return FoundRegion(
        number=number,
        rle=segment.to_rle(),
        score=segment.score,
        stability_score=segment.stability_score,
        area=segment.area,
        box=segment.box or (0, 0, 0, 0),
        point=segment.point,
        crop_box=segment.crop_box,
    )


def _bare(found: FoundRegion) -> dict[str, Any]:
    return BareObject(
        id=found.number,
        score=round(found.score, 5),
        stability_score=round(found.stability_score, 5),
        area=found.area,
        bbox=coco_box(found.box),
        point=[round(each, 2) for each in found.point],
        crop_box=coco_box(found.crop_box),
    ).model_dump()


class Searches:
    def __init__(self, engine: Engine, find: Finder = find) -> None:
        self.find = find
        self._engine = engine
        self._running: set[Search] = set()

    def start(self, image: StoredImage, pair: Pair, request: EverythingRequest) -> Search:
        if not pair.finds_everything:
            detail = f"Triton has no session model {pair.name}, which the search needs: export its models again"
            raise Problem(404, detail, code="no_everything")
        started = Search(self._engine, image, pair, request, self.find)
        self._running.add(started)
        started.task.add_done_callback(lambda _: self._running.discard(started))
        return started

    def stop(self) -> None:
        """Stop all searches, because the service stops."""
        for each in self._running:
            each.stop()
