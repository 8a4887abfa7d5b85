"""The routes of /v1/large: tiles of slides and maps, and masks of their objects by clicks."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from ..cancellation import CancellableRequests
from ..engine import Engine
from ..large.folder import LargeFolder, LargeImageInfo, LargeImages, describe
from ..large.segmenting import LargeSegmentAnswer, LargeSegmenting, LargeSegmentRequest
from ..schemas import file_route, problem_responses

LargeId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="An id that `GET /v1/large` lists.")]
Place = Annotated[int, Path(ge=0, le=1_000_000)]


def router(engine: Engine, folder: LargeFolder, requests: CancellableRequests) -> APIRouter:
    api = APIRouter(prefix="/v1/large", tags=["v1 large images"])
    segmenting = LargeSegmenting(folder, engine)

    @api.get("", summary="List large images", responses=problem_responses())
    async def list_images() -> LargeImages:
        """List the slides and maps in the service's folder."""
        return LargeImages(images=await folder.names())

    @api.get("/{large_id}", summary="Look a large image up", responses=problem_responses(404, 422, 499))
    async def look(request: Request, large_id: LargeId) -> LargeImageInfo:
        """Describe a large image and the levels of its tiles."""

        async def work() -> LargeImageInfo:
            async with folder.image(large_id) as (name, image):
                return describe(large_id, name, folder.version(large_id), image)

        return await requests.run(request, work())

    @api.get(
        "/{large_id}/levels/{level}/tiles/{column}/{row}",
        summary="Show a tile of a large image",
        **file_route("The tile.", ["image/jpeg"], 404, 422, 499),
    )
    async def show(request: Request, large_id: LargeId, level: Place, column: Place, row: Place) -> Response:
        """Return a tile as JPEG. Level 0 is the full resolution; each further level halves both sides."""

        async def work() -> bytes:
            async with folder.image(large_id) as (_, image):
                return await folder.tile(image, level, column, row)

        content = await requests.run(request, work())
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    @api.post(
        "/{large_id}/segment",
        summary="Segment a large image",
        responses=problem_responses(400, 404, 413, 422, 499),
    )
    async def segment_object(request: Request, large_id: LargeId, body: LargeSegmentRequest) -> LargeSegmentAnswer:
        """Return the mask of one object in pixels of the image.

        The service crops the part around the prompts, at the level that fits `scale`, and sends it to the model. If the
        mask reaches the border of the part, a part of twice the length is tried, at most twice. If
        `triton-sam large precompute` has written tile embeddings, the first part is the tile around the prompts, and is
        not encoded again.
        """
        started = time.monotonic()
        pair = await engine.pair(body.model)

        async def work() -> LargeSegmentAnswer:
            async with folder.image(large_id) as (_, image):
                masks = await segmenting.segment(large_id, image, pair, body)
                width, height = image.size
            return LargeSegmentAnswer(
                image=large_id,
                model=pair.name,
                width=width,
                height=height,
                masks=masks,
                milliseconds=round((time.monotonic() - started) * 1000, 2),
            )

        return await requests.run(request, work())

    return api
