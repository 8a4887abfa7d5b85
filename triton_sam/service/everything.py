"""Finds all objects of an image: the route ``/v1/images/{id}/everything``, its messages, the search, and its events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, Field

from ..errors import ConfigurationError
from ..everything.parameters import MAX_CROP_LAYERS, MAX_POINTS_PER_SIDE, Parameters, parameters_of
from ..everything.search import FoundMask, SearchProgress
from ..masks.boxes import corner_and_size
from ..masks.cleanup import MAX_THRESHOLD, Cleanup
from ..masks.segment import TOLERANCE
from . import events, problems
from .answers import JSON, to_json, with_list
from .budgets import stopping
from .cancellation import CancellableRequests
from .engine import Engine, Pair
from .events import Events
from .problems import Problem, cancelled
from .schemas import (
    SINGLE_FORMATS,
    Area,
    CleanupRequest,
    ImageAnswer,
    ImageId,
    ModelName,
    Score,
    SessionName,
    Share,
    SingleFormat,
    Strict,
    Tolerance,
    examples,
    problem_responses,
    with_mask,
)
from .store import StoredImage

MAX_AREA = 1 << 31
"""Maximum of ``min_mask_region_area``, in pixels. JSON has whole numbers that no float can hold."""


class EverythingRequest(Strict):
    """Search parameters, with the names and meanings of Meta's automatic mask generators. All are optional."""

    model_config = examples({}, {"points_per_side": 16, "crop_n_layers": 1, "cleanup": {"max_hole_area": 32}})

    points_per_side: int | None = Field(
        default=None, ge=1, le=MAX_POINTS_PER_SIDE, description="Points of the grid in each row and column."
    )
    points_per_batch: int | None = Field(default=None, ge=1, le=1024, description="It has no effect.")
    pred_iou_thresh: Share | None = Field(default=None, description="Masks of a lower score are dropped.")
    stability_score_thresh: Share | None = Field(default=None, description="Masks that are less stable are dropped.")
    stability_score_offset: float | None = Field(
        default=None, ge=0, le=100, description="The change of the threshold by which stability is measured."
    )
    mask_threshold: float | None = Field(
        default=None,
        ge=-MAX_THRESHOLD,
        le=MAX_THRESHOLD,
        allow_inf_nan=False,
        description="Logits above it are foreground. A lower number gives larger masks.",
    )
    box_nms_thresh: Share | None = Field(
        default=None, description="Of masks whose boxes have a higher IoU, the best stays."
    )
    crop_n_layers: int | None = Field(
        default=None,
        ge=0,
        le=MAX_CROP_LAYERS,
        description="Layer i searches again in 2**i x 2**i overlapping crops of the image.",
    )
    crop_nms_thresh: Share | None = Field(default=None, description="As box_nms_thresh, between crops.")
    crop_overlap_ratio: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="The share of the shorter side by which crops overlap.",
    )
    crop_n_points_downscale_factor: int | None = Field(
        default=None, ge=1, le=16, description="Layer i has points_per_side divided by this number to the power of i."
    )
    min_mask_region_area: int | None = Field(
        default=None, ge=0, le=MAX_AREA, description="Smaller holes and parts, in pixels, are filled and dropped."
    )
    multimask_output: bool | None = Field(
        default=None, description="Whether each point gives all candidates (three, or one with SAM-HQ)."
    )
    use_m2m: bool | None = Field(
        default=None, description="Whether to refine each mask once, with its logits as a prompt (SAM2)."
    )
    cleanup: CleanupRequest | None = Field(
        default=None, description="How to clean the masks. Default: masks are not cleaned."
    )
    model: ModelName = None
    session_id: SessionName = None
    format: SingleFormat = Field(default="rle", description="The format of the masks.")
    tolerance: Tolerance = TOLERANCE

    def parameters(self, family: str) -> Parameters:
        others = {"cleanup", "model", "session_id", "format", "tolerance", "points_per_batch"}
        cleanup = Cleanup() if self.cleanup is None else self.cleanup.to_cleanup()
        try:
            return parameters_of(family, {**self.model_dump(exclude=others, exclude_none=True), "cleanup": cleanup})
        except ConfigurationError as error:  # two fields contradict each other, or the family lacks one
            raise Problem(422, str(error)) from error


class BareObject(BaseModel):
    """One object, without its mask."""

    id: int = Field(description="The number of the object in this answer, from 0.")
    score: Score
    stability_score: float = Field(description="The IoU of the masks at two thresholds.")
    area: Area
    bbox: list[int] = Field(description="The box in the form of COCO: x, y, width, height.")
    point: list[float] = Field(description="The point of the grid that found the object: x, y.")
    crop_box: list[int] = Field(description="The crop in which it was found, in the form of COCO.")


if TYPE_CHECKING:
    FoundObject = BareObject
else:
    FoundObject = with_mask("FoundObject", BareObject, "One object.")


class EverythingAnswer(ImageAnswer):
    """All objects of an image."""

    objects: list[FoundObject]
    points: int = Field(description="The number of points that were decoded.")
    detail: str | None = Field(default=None, description="Why no object was found.")
    milliseconds: float = Field(description="The time of the search.")


@dataclass(frozen=True)
class FinderUpdate:
    """One step of a search: its progress, the new objects by number, and the numbers of removed ones."""

    done: int
    total: int
    found: Mapping[int, FoundMask]
    removed: Sequence[int]


@dataclass(frozen=True)
class Done:
    """The last event of a search. ``detail`` explains why there are no objects."""

    objects: int
    points: int
    milliseconds: float
    detail: str | None = None


class Search:
    """A search. It holds its place until it has ended and its reader has left, because the found masks take memory.

    Attributes:
        events: a ``FinderUpdate`` for each batch of points, and finally ``Done`` or a Problem.
    """

    def __init__(self, engine: Engine, image: StoredImage, pair: Pair, request: EverythingRequest) -> None:
        self.events: Events[FinderUpdate | Done] = Events()
        self._engine = engine
        self._image = image
        self._pair = pair
        self._request = request
        self._end = cancelled()
        self._started = time.monotonic()
        self._place = engine.budgets.searches.take()
        self.task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop, because the service stops. The reader still receives the event ``error``."""
        self._end = stopping()
        self.task.cancel()

    def leave(self) -> None:
        """Stop, also at Triton, because the reader has left."""
        self.events.leave()
        self.task.cancel()
        self.task.add_done_callback(lambda _: self._place.give())

    async def objects(self) -> tuple[dict[int, FoundMask], Done]:
        """Wait for the end; return all objects and the last event."""
        found: dict[int, FoundMask] = {}
        async for each in self.events:
            if isinstance(each, Done):
                return found, each
            found |= each.found
            for gone in each.removed:
                found.pop(gone, None)
        raise self._end

    async def write(self, found: Mapping[int, FoundMask]) -> list[bytes]:
        """Return objects as JSON, written one by one in a thread."""
        form, tolerance = self._request.format, self._request.tolerance

        def write(numbered: tuple[int, FoundMask]) -> bytes:
            number, mask = numbered
            each = mask.segment(number)
            bare = BareObject(
                id=number,
                score=round(each.score, 5),
                stability_score=round(each.stability_score, 5),
                area=each.area,
                bbox=corner_and_size(each.box),
                point=[round(value, 2) for value in each.point],
                crop_box=corner_and_size(each.crop_box),
            )
            return to_json({**bare.model_dump(), form: SINGLE_FORMATS[form].to_json(each, tolerance)})

        width, height = self._image.size
        return await self._engine.budgets.workers.map(2 * width * height, write, found.items())

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
        client = self._engine.client_of(self._pair, embeddings)
        parameters = self._request.parameters(self._pair.family.name)
        numbers: dict[FoundMask, int] = {}  # of the objects that the reader has
        counter = itertools.count()
        detail, done, total = None, 0, 0
        async with contextlib.aclosing(client.search_steps(self._image.content, parameters, embeddings)) as steps:
            async for step in steps:
                if isinstance(step, SearchProgress):
                    masks, done, total = step.masks(), step.done, step.total
                else:
                    masks, detail = step.masks, None if step.masks else step.reason
                kept = set(masks)
                removed = [numbers.pop(mask) for mask in list(numbers) if mask not in kept]
                found = {next(counter): mask for mask in masks if mask not in numbers}
                numbers |= {mask: number for number, mask in found.items()}
                await self.events.put(FinderUpdate(done, total, found, removed))
        milliseconds = round((time.monotonic() - self._started) * 1000, 1)
        await self.events.put(Done(len(numbers), done, milliseconds, detail), None)


class Searches:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: set[Search] = set()

    def start(self, image: StoredImage, pair: Pair, request: EverythingRequest) -> Search:
        if not pair.finds_everything:
            detail = f"Triton has no session model {pair.name}, which the search needs: export its models again"
            raise Problem(404, detail, code="no_everything")
        started = Search(self._engine, image, pair, request)
        self._running.add(started)
        started.task.add_done_callback(lambda _: self._running.discard(started))
        return started

    def stop(self) -> None:
        for each in self._running:
            each.stop()


ANSWERS: dict[str, Any] = {
    "description": "All objects: as one document, or, with `Accept: text/event-stream`, as server-sent events.",
    "content": {
        JSON: {"schema": {"$ref": "#/components/schemas/EverythingAnswer"}},
        events.MEDIA_TYPE: {"schema": {"type": "string"}},
    },
}


def router(engine: Engine, searches: Searches, requests: CancellableRequests) -> APIRouter:
    api = APIRouter(prefix="/v1", tags=["v1"])

    @api.post(
        "/images/{image_id}/everything",
        summary="Find everything",
        response_model=None,
        responses={200: ANSWERS, **problem_responses(400, 404, 413, 422, 499)},
    )
    async def everything(
        request: Request,
        image_id: ImageId,
        body: EverythingRequest,
        accept: Annotated[str, Header(description=f"{JSON} or {events.MEDIA_TYPE}.")] = JSON,
    ) -> Response:
        """Find all objects of an image, like Meta's automatic mask generators.

        With `Accept: text/event-stream`, objects are sent as they are found. `objects` has new `objects` and the ids of
        `removed` ones that a better object covers. `progress` has `done` and `total` points. The last event is `done`
        or `error`. Disconnecting stops the search.
        """
        image = engine.image(image_id)
        pair = await engine.pair(body.model)
        search = searches.start(image, pair, body)
        requests.name(search.task, body.session_id)
        is_handed_over = False
        try:
            seconds = engine.settings.search_seconds
            if events.MEDIA_TYPE in accept.lower():
                await requests.run(request, search.events.begin(), timeout=seconds)
                is_handed_over = True
                return events.EventStream(events.stream(search.events, _writer(search)), search.leave)
            found, done = await requests.run(request, search.objects(), timeout=seconds)
            objects = await requests.run(request, search.write(found), timeout=seconds)
        finally:
            if not is_handed_over:
                search.leave()
        answer = EverythingAnswer(
            image=image_id,
            model=pair.name,
            width=image.size[0],
            height=image.size[1],
            objects=[],
            points=done.points,
            detail=done.detail,
            milliseconds=done.milliseconds,
        )
        return Response(with_list(answer, "objects", objects), media_type=JSON)

    return api


def _writer(search: Search) -> Callable[[FinderUpdate | Done], Awaitable[bytes]]:
    count = 0

    async def write(each: FinderUpdate | Done) -> bytes:
        nonlocal count
        if isinstance(each, Done):
            return events.event("done", **{name: value for name, value in asdict(each).items() if value is not None})
        objects = b""
        if each.found or each.removed:
            written = b",".join(await search.write(each.found))
            data = b'{"objects":[%b],"removed":%b}' % (written, to_json(list(each.removed)))
            objects = events.to_bytes("objects", data)
        count += len(each.found) - len(each.removed)
        return objects + events.event("progress", done=each.done, total=each.total, objects=count)

    return write
