"""The route that finds all objects of an image, as a JSON document or as server-sent events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from ..._common import strict_json
from .. import events
from ..answers import JSON
from ..cancellation import CancellableRequests
from ..engine import Engine
from ..everything.schemas import EverythingAnswer, EverythingRequest
from ..everything.search import Done, FinderUpdate, Search, Searches
from ..schemas import problem_responses
from .v1 import ImageId

NO_OBJECTS, OBJECTS = b'"objects":[]', b'"objects":'
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
        before, after = answer.model_dump_json(exclude_none=True).encode().split(NO_OBJECTS)
        written = strict_json.dumps(objects, separators=(",", ":")).encode()
        return Response(b"".join((before, OBJECTS, written, after)), media_type=JSON)

    return api


def _writer(search: Search) -> Callable[[FinderUpdate | Done], Awaitable[bytes]]:
    """Return a function that converts updates of a search to events."""
    count = 0

    async def write(each: FinderUpdate | Done) -> bytes:
        nonlocal count
        if isinstance(each, Done):
            return events.event("done", **{name: value for name, value in asdict(each).items() if value is not None})
        objects = b""
        if each.found or each.removed:
            objects = events.event("objects", objects=await search.write(each.found), removed=list(each.removed))
        count += len(each.found) - len(each.removed)
        return objects + events.event("progress", done=each.done, total=each.total, objects=count)

    return write
