"""The route that converts masks to data set files."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from ..bodies import FILES, kind_of
from ..cancellation import CancellableRequests
from ..engine import Engine
from ..exports import Export, ExportFormat
from ..problems import Problem
from ..schemas import BINARY, file_response, problem_responses

ZIP = "application/zip"
FIELD = "images"
MASKS_AT_A_TIME = 4
"""Masks, or arrays of their size, that a writer holds in memory."""
_LINES = {
    **BINARY,
    "description": "JSON Lines, one image in each: `name`, `width`, `height` and `objects`, each with `label`, `rle`, "
    "and, if it has them, `name` and `score`.",
}
BODY: dict[str, Any] = {
    "required": True,
    "content": {FILES: {"schema": {"type": "object", "required": [FIELD], "properties": {FIELD: _LINES}}}},
}


def router(engine: Engine, requests: CancellableRequests) -> APIRouter:
    api = APIRouter(prefix="/v1", tags=["v1"])

    @api.post(
        "/exports",
        summary="Write a data set",
        response_class=Response,
        responses={200: file_response("The files.", ZIP), **problem_responses(400, 413, 422, 499)},
        openapi_extra={"requestBody": BODY},
    )
    async def export(
        request: Request, form: Annotated[ExportFormat, Query(alias="format", description="The format of the files.")]
    ) -> Response:
        """Return masks as data set files in a ZIP, in the formats of `triton-sam annotate`.

        The images themselves are not needed. The classes are the objects' labels in alphabetical order.
        """
        wanted = await _wanted(request, engine)

        def write(steps: Iterator[None]) -> bytes:
            return wanted.to_zip(form, lambda: next(steps))  # raises when the client has disconnected

        work = engine.budgets.workers.reduce(wanted.pixels * MASKS_AT_A_TIME, write, itertools.repeat(None))
        return Response(await requests.run(request, work), media_type=ZIP)

    return api


async def _wanted(request: Request, engine: Engine) -> Export:
    if kind_of(request.headers) != FILES:
        raise Problem(415, f"send the images as {FILES}, in the part `{FIELD}`", code="content_type")
    # The parser treats a part without a file name as a field; both hold the same lines.
    async with request.form(max_files=1, max_fields=1, max_part_size=engine.settings.max_body) as form:
        part = form.get(FIELD)
        if part is None:
            raise Problem(422, f"the form has no part with the name `{FIELD}`")
        file = part.file if isinstance(part, UploadFile) else io.BytesIO(part.encode())
        limits = engine.settings.max_json, engine.settings.max_megapixels
        return await run_in_threadpool(Export.read, file, *limits)
