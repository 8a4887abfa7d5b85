"""The route that finds all instances of words or example boxes in an image."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from ...concepts.instances import Instance
from ..answers import JSON
from ..cancellation import CancellableRequests
from ..concepts import (
    FIND_FORMATS,
    GEOJSON,
    FindAnswer,
    FindRequest,
    check_pair,
    encode_instances,
    find,
    to_document,
)
from ..engine import Engine
from ..schemas import problem_responses
from .v1 import ImageId

ANSWERS: dict[str, Any] = {
    "description": "All instances: of the first text, the best first, then of the next text.",
    "content": {
        JSON: {"schema": {"$ref": "#/components/schemas/FindAnswer"}},
        FIND_FORMATS[GEOJSON].media_type: {"schema": {"type": "object"}},
    },
}


def router(engine: Engine, requests: CancellableRequests) -> APIRouter:
    api = APIRouter(prefix="/v1", tags=["v1"])

    @api.post(
        "/images/{image_id}/find",
        summary="Find concepts",
        response_model=None,
        responses={200: ANSWERS, **problem_responses(400, 404, 413, 422, 499)},
    )
    async def find_concepts(request: Request, image_id: ImageId, body: FindRequest) -> Response:
        """Find every instance of concepts, given as words or example boxes.

        This needs a model with `finds_concepts`: SAM3 with its concept models. Triton encodes the image once for any
        number of words and clicks. `format: geojson` returns one FeatureCollection.
        """
        started = time.monotonic()
        image = engine.image(image_id)
        example = None if body.example_image is None else engine.image(body.example_image)
        query = body.to_query(image.size, (example or image).size)
        pair = await engine.pair(body.model)
        check_pair(pair)
        width, height = image.size

        async def work() -> Response:
            found = await find(engine, pair, image, example, query)

            def encode(instances: Iterator[Instance]) -> bytes:
                objects = encode_instances(instances, body.format, body.tolerance)
                milliseconds = round((time.monotonic() - started) * 1000, 1)
                answer = FindAnswer(
                    image=image_id, model=pair.name, width=width, height=height, objects=[], milliseconds=milliseconds
                )
                return to_document(answer, objects, body.format)

            content = await engine.budgets.workers.reduce(2 * width * height, encode, found)
            return Response(content, media_type=FIND_FORMATS[GEOJSON].media_type if body.format == GEOJSON else JSON)

        return await requests.run(request, work(), body.session_id)

    return api
