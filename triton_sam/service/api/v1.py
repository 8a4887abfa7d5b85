"""The routes of /v1: callers upload an image once, and then request masks of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.datastructures import UploadFile

from ...inputs.formats import reads_heic
from ...masks.segment import Segment
from .. import answers
from ..bodies import FILES, IMAGE_KINDS, is_image, kind_of
from ..cancellation import CancellableRequests
from ..engine import Engine, Pair
from ..problems import Problem
from ..public import ImageUrl, fetch_image
from ..quotas import COUNT_UPLOAD
from ..schemas import (
    BINARY,
    Format,
    ImageId,
    ImageInfo,
    Model,
    Models,
    SegmentAnswer,
    SegmentRequest,
    empty_route,
    file_route,
    problem_responses,
)
from ..store import StoredImage

ModelName = Annotated[str | None, Query(max_length=128, description="A name that `GET /v1/models` lists.")]

MAX_FIELD = 1 << 30
"""Maximum bytes of a part without a file name; high, so that the error is a clear one. The body has its own limit."""
_BYTES = {**BINARY, "description": "JPEG, PNG, WebP, TIFF, BMP, GIF, AVIF, JPEG 2000 or HEIC."}
UPLOAD: dict[str, Any] = {
    "required": True,
    "content": {
        FILES: {"schema": {"type": "object", "required": ["image"], "properties": {"image": _BYTES}}},
        **{kind: {"schema": _BYTES} for kind in IMAGE_KINDS},
    },
}
"""The body of an upload, in OpenAPI."""
ANSWERS: dict[str, Any] = {
    "description": "The masks.",
    "content": {media_type: {"schema": schema} for media_type, schema in answers.media_types().items()},
}


def router(engine: Engine, requests: CancellableRequests) -> APIRouter:  # noqa: C901 - one route after the other
    api = APIRouter(prefix="/v1", tags=["v1"])

    @api.get("/models", summary="List models", responses=problem_responses())
    async def list_models() -> Models:
        """List the models that are ready on Triton."""
        default = await engine.pair(None)
        models = [describe(pair, pair == default) for pair in engine.state.pairs.values()]
        settings = engine.settings
        return Models(
            models=models,
            image_urls=settings.image_urls,
            heic=reads_heic(),
            max_image_bytes=settings.max_body,
            max_video_bytes=settings.max_video,
        )

    @api.post(
        "/images",
        summary="Upload an image",
        status_code=201,
        responses=problem_responses(400, 404, 413, 415, 422, 499),
        openapi_extra={"requestBody": UPLOAD},
    )
    async def upload(
        request: Request,
        response: Response,
        content: Annotated[bytes, Depends(uploaded)],
        model: ModelName = None,
    ) -> ImageInfo:
        """Upload an image and encode it, so that the first click is as fast as the others.

        The image is a part of a form, or the body itself. An image that the service already has is not encoded again.
        """
        pair = await engine.pair(model)
        stored = await engine.store(content)
        await requests.run(request, engine.embed(stored, pair))
        response.headers["Location"] = f"/v1/images/{stored.image_id}"
        return info(stored)

    @api.post(
        "/images/url",
        summary="Fetch an image",
        status_code=201,
        responses=problem_responses(400, 403, 404, 413, 415, 422, 499, 502),
    )
    async def fetch(request: Request, response: Response, body: ImageUrl, model: ModelName = None) -> ImageInfo:
        """Fetch an image from a public URL, and encode it like an upload.

        The operator must start the service with `--image-urls`. The request contains no data of the caller except the
        URL, and private networks are blocked, even after a redirect.
        """

        async def work() -> StoredImage:
            pair = await engine.pair(model)
            content = await fetch_image(body.url, engine.settings, engine.budgets)
            request.scope[COUNT_UPLOAD](len(content))
            stored = await engine.store(content)
            await engine.embed(stored, pair)
            return stored

        stored = await requests.run(request, work())
        response.headers["Location"] = f"/v1/images/{stored.image_id}"
        return info(stored)

    @api.get("/images/{image_id}", summary="Look an image up", responses=problem_responses(404, 422))
    async def look(image_id: ImageId) -> ImageInfo:
        """Describe an uploaded image."""
        return info(engine.image(image_id))

    @api.get(
        "/images/{image_id}/content",
        summary="Get an image back",
        **file_route("The file.", ["application/octet-stream"], 404, 422),
    )
    async def content(image_id: ImageId) -> Response:
        """Return an image's bytes as uploaded or fetched.

        A HEIC photograph is returned as the PNG that the service has made of it.
        """
        return Response(engine.image(image_id).content, media_type="application/octet-stream")

    @api.get(
        "/images/{image_id}/preview",
        summary="Show an image",
        **file_route("The image.", ["image/jpeg"], 404, 422, 499),
    )
    async def preview(request: Request, image_id: ImageId) -> Response:
        """Return an upright 8-bit JPEG, for programs that cannot show the original, such as a 16-bit TIFF."""
        content = await requests.run(request, engine.preview(engine.image(image_id)))
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    @api.delete("/images/{image_id}", summary="Forget an image", **empty_route(404, 422))
    async def forget(image_id: ImageId) -> None:
        """Delete an uploaded image."""
        if not engine.images.remove(image_id):
            raise Problem(404, "there is no image with this id", code="unknown_image")

    @api.post(
        "/images/{image_id}/segment",
        summary="Segment",
        response_model=None,
        responses={200: ANSWERS, **problem_responses(400, 404, 406, 413, 422, 499)},
    )
    async def segment(
        request: Request,
        image_id: ImageId,
        body: SegmentRequest,
        accept: Annotated[str, Header(description=f"{', '.join(answers.media_types())}.")] = "*/*",
        wanted: Annotated[
            Format | None,
            Query(alias="format", description="The format of the masks. It precedes `format` of the body."),
        ] = None,
    ) -> Response:
        """Return masks of an image.

        The response is JSON with COCO RLE, polygons or PNG; GeoJSON; or, with `Accept: image/png`, one image with 255
        inside the object. With several objects, its pixels are object numbers. Disconnecting cancels the request.
        """
        started = time.monotonic()
        form, as_file = answers.choose_format(wanted or body.format, accept)
        stored = engine.image(image_id)
        prompt = answers.client_prompt(body)
        pair = await engine.pair(body.model)
        answers.check_amount(body, stored.size, pair.family)

        def write(segments: Iterator[Segment]) -> bytes:
            if as_file:
                return form.to_document(segments, body.tolerance)
            answer = SegmentAnswer(
                image=image_id, model=pair.name, width=stored.size[0], height=stored.size[1], masks=[], milliseconds=0
            )
            return answers.write_answer(answer, segments, form, body, started)

        async def work() -> Response:
            embeddings = await engine.embed(stored, pair)
            kept = len(body.objects or [body]) + 1 if as_file else 1  # a file needs the best mask of each object
            content = await engine.segment(
                *(embeddings, pair, prompt, write),
                multimask=body.multimask,
                at_a_time=kept,
                logits=body.logits and not as_file,
            )
            return Response(content, media_type=form.media_type if as_file else answers.JSON)

        return await requests.run(request, work())

    return api


async def uploaded(request: Request) -> bytes:
    kind = kind_of(request.headers)
    if kind == FILES:
        async with request.form(max_part_size=MAX_FIELD) as form:
            part = form.get("image")
            if not isinstance(part, UploadFile):
                raise Problem(
                    422, "the form has no file `image`: send it with a file name, as `curl -F image=@FILE` does"
                )
            return await part.read()
    content = await request.body()
    if not content:
        raise Problem(422, f"there is no image: send it as {FILES} in the part `image`, or as the body itself")
    if not is_image(kind):
        kinds = ", ".join(IMAGE_KINDS)
        raise Problem(
            415,
            f"send the image as {FILES} in the part `image`, or as the body itself with its Content-Type: {kinds}",
            code="content_type",
        )
    return content


def describe(pair: Pair, is_default: bool) -> Model:
    return Model(
        name=pair.name,
        family=pair.family.name,
        version=pair.version,
        default=is_default,
        keeps_images=pair.keeps_images,
        takes_mask=pair.family.takes_mask,
        tracks_videos=pair.tracks_videos,
        finds_everything=pair.finds_everything,
        finds_concepts=pair.finds_concepts,
        demo=pair.is_demo,
    )


def info(image: StoredImage) -> ImageInfo:
    width, height = image.size
    return ImageInfo(id=image.image_id, width=width, height=height, bytes=len(image.content), models=image.models)
