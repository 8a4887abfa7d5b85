"""A search for everything, as a task that puts its events into a queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any

from ..._common import strict_json
from ...masks.formats import TOLERANCE
from ...masks.rle import rle_to_mask
from ...masks.segment import Segment
from .. import problems
from ..budgets import stopping
from ..engine import Engine, Pair
from ..problems import Problem, cancelled
from ..store import StoredImage
from ..videos.events import Event, event
from .finder import Finder, Found, Step, find
from .schemas import OBJECT_FORMATS, BareObject, EverythingRequest

WAITING_EVENTS = 8
"""Events that may wait for a reader. A reader that is slower than the search slows it down."""


class Search:
    """A running search.

    Args:
        engine: encodes the image.
        image: the image.
        pair: the models.
        request: the parameters.
        finder: searches.

    Attributes:
        events: ``objects`` for each batch of objects, ``progress``, and at the end ``done`` or ``error``.
        task: the task that searches.
        problem: the reason of an event ``error``.
    """

    def __init__(
        self, engine: Engine, image: StoredImage, pair: Pair, request: EverythingRequest, finder: Finder
    ) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue(WAITING_EVENTS)
        self.problem: Problem | None = None
        self._engine = engine
        self._image = image
        self._pair = pair
        self._request = request
        self._finder = finder
        self._found = 0
        self._is_left = False
        self._end = cancelled()
        self._started = time.monotonic()
        with engine.budgets.searches.take() as place:
            self.task = asyncio.create_task(self._run())
            running = place.pass_on()
        self.task.add_done_callback(lambda _: running.give())

    def stop(self) -> None:
        """Stop, because the service stops. The reader still gets the event ``error``."""
        self._end = stopping()
        self.task.cancel()

    def leave(self) -> None:
        """Stop, also at Triton. Nobody reads events any more."""
        self._is_left = True
        self.task.cancel()

    async def objects(self) -> tuple[list[bytes], dict[str, Any]]:
        """Wait for the end; return all objects as JSON, and the data of the event ``done``.

        Raises:
            Problem: the search failed, or was cancelled.
        """
        found: dict[int, bytes] = {}
        while True:
            each = await self.events.get()
            data = json.loads(each.data)
            if each.name == "objects":
                found |= {one["id"]: strict_json.dumps(one, separators=(",", ":")).encode() for one in data["objects"]}
                for gone in data["removed"]:
                    found.pop(gone, None)
            elif each.name == "done":
                return list(found.values()), data
            elif self.problem is not None:
                raise self.problem

    async def _run(self) -> None:
        seconds = self._engine.settings.search_seconds
        try:
            await asyncio.wait_for(self._search(), seconds)
        except asyncio.CancelledError:
            await self._fail(self._end)
            raise
        except asyncio.TimeoutError:
            await self._fail(
                Problem(504, f"the search took more than {seconds:g} s: ask for fewer points", code="timeout")
            )
        except Exception as error:  # noqa: BLE001 - the reader may have an answer with status 200 already
            await self._fail(problems.meant_by(error))

    async def _search(self) -> None:
        embeddings = await self._engine.embed(self._image, self._pair)
        request = self._request
        cleanup = None if request.cleanup is None else request.cleanup.to_cleanup()
        client = self._engine.client_of(self._pair, embeddings)
        steps = self._finder(client, embeddings, self._image.content, request.options(), cleanup)
        last = Step(done=0, total=0)
        async with contextlib.aclosing(steps):
            async for last in steps:
                await self._tell(last)
        milliseconds = round((time.monotonic() - self._started) * 1000, 1)
        detail = {} if last.detail is None else {"detail": last.detail}
        await self._put(event("done", objects=self._found, points=last.done, milliseconds=milliseconds, **detail))

    async def _tell(self, step: Step) -> None:
        if step.found or step.removed:
            objects = await self._write(step.found)
            await self._put(event("objects", objects=objects, removed=list(step.removed)))
        self._found += len(step.found) - len(step.removed)
        await self._put(event("progress", done=step.done, total=step.total, objects=self._found))

    async def _write(self, found: Sequence[Found]) -> list[dict[str, Any]]:
        """Return objects as JSON. Other formats than RLE need the pixels of one mask at a time, in a thread."""
        form, tolerance = self._request.format, self._request.tolerance
        if form == "rle":
            return [{**_bare(each), "rle": each.rle} for each in found]

        async def fetch() -> Sequence[Found]:
            return found

        def work(parts: Iterator[Found]) -> list[dict[str, Any]]:
            return [{**_bare(each), form: _encode(each, form, tolerance)} for each in parts]

        width, height = self._image.size
        return await self._engine.budgets.workers.run(2 * width * height, fetch, work)

    async def _fail(self, problem: Problem) -> None:
        self.problem = problem
        await self._put(event("error", **problems.body(problem)))

    async def _put(self, found: Event) -> None:
        if not self._is_left:
            await self.events.put(found)


def _bare(found: Found) -> dict[str, Any]:
    x1, y1, x2, y2 = found.box
    left, top, right, bottom = found.crop_box
    return BareObject(
        id=found.number,
        score=round(found.score, 5),
        stability_score=round(found.stability_score, 5),
        area=found.area,
        bbox=[x1, y1, x2 - x1, y2 - y1],
        point=[round(each, 2) for each in found.point],
        crop_box=[left, top, right - left, bottom - top],
    ).model_dump()


def _encode(found: Found, form: str, tolerance: float = TOLERANCE) -> Any:
    segment = Segment(rle_to_mask(found.rle), found.score, None, found.number)
    return OBJECT_FORMATS[form].to_json(segment, tolerance)


class Searches:
    """All searches of a service.

    Args:
        engine: encodes images.
        find: searches.
    """

    def __init__(self, engine: Engine, find: Finder = find) -> None:
        self.find = find
        self._engine = engine
        self._running: set[Search] = set()

    def start(self, image: StoredImage, pair: Pair, request: EverythingRequest) -> Search:
        """Begin a search.

        Raises:
            Problem: 404, there is no session model; 503, too many images are searched.
        """
        if not pair.finds_everything:
            detail = f"Triton has no session model {pair.name}, which the search needs: export its models again"
            raise Problem(404, detail, code="no_everything")
        search = Search(self._engine, image, pair, request, self.find)
        self._running.add(search)
        search.task.add_done_callback(lambda _: self._running.discard(search))
        return search

    def stop(self) -> None:
        """Stop all searches, because the service stops."""
        for search in self._running:
            search.stop()


async def first_of(search: Search) -> Event:
    """Wait for the first event, so that a failure before it has a status of its own.

    Raises:
        Problem: the search failed before it had anything to tell.
    """
    first = await search.events.get()
    if search.problem is not None and first.name == "error":
        raise search.problem
    return first


async def told(first: Event, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a search as they are sent."""
    yield first.to_bytes()
    if not first.is_last:
        async for piece in rest:
            yield piece
