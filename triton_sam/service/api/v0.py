"""The contract of the 2024 SAM service, unchanged, for its clients."""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import io
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, File, Form, Query, Request, Response, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse

from ...errors import InputError
from ...families import model_name, variant_of
from ...families.tables import ENCODER
from ...inputs.embeddings import ImageEmbeddings
from ...masks.segment import Segment
from ..cancellation import CancellableRequests
from ..engine import Engine, Pair
from ..problems import Problem
from ..schemas import BINARY, file_route, problem_responses
from ..store import accept_image, check_size, key_of

PLAIN_SHAPE = (1, 256, 64, 64)
PLAIN_BYTES = 4 * 256 * 64 * 64
PLAIN_SIZES = {PLAIN_BYTES, 4 * 256 * 72 * 72}
"""Bytes of SAM1's and SAM2's map, and of SAM3's."""
NPZ = "application/x-npz"
GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"
ENTRY, MAX_ENTRIES = b"PK\x01\x02", 64
"""The signature of each entry in an .npz directory, and the maximum number of entries. Ours have fewer than 16."""
MAX_PIXEL = 1_000_000

SESSION_FIELD = Form(
    max_length=128, description="From `GET /new_session_id`.", examples=["6f1d3c0e-93f4-4d57-9f0e-0a6a5a1f2b7c"]
)
GivenSessionId = Annotated[str, SESSION_FIELD]
SessionId = Annotated[str | None, SESSION_FIELD]
ModelVersion = Annotated[
    str | None,
    Form(
        max_length=128,
        description="`sam1`, `sam2`, `sam3`, or a variant that `GET /models` lists.",
        examples=["sam2"],
    ),
]
X = Annotated[int, Form(ge=0, le=MAX_PIXEL, description="Column of the pixel, from the left.", examples=[210])]
Y = Annotated[int, Form(ge=0, le=MAX_PIXEL, description="Row of the pixel, from the top.", examples=[350])]
Width = Annotated[int, Form(ge=1, le=MAX_PIXEL, description="Width of the image in pixels.", examples=[800])]
Height = Annotated[int, Form(ge=1, le=MAX_PIXEL, description="Height of the image in pixels.", examples=[534])]
PNG = "The mask in the size of the image: 255 inside the object, else 0.", ["image/png"]
EMBEDDING: dict[str, Any] = {
    "description": "Base64 of raw float32 (1,256,64,64), as text or its gzip; or all embeddings as .npz.",
    "content": {
        "text/plain": {"schema": {"type": "string"}},
        "application/gzip": {"schema": BINARY},
        NPZ: {"schema": BINARY},
    },
}


def router(engine: Engine, requests: CancellableRequests) -> APIRouter:  # noqa: C901 - one route after the other
    api = APIRouter(tags=["2024 contract"])

    @api.get(
        "/new_session_id", summary="Get a session id", response_class=PlainTextResponse, responses=problem_responses()
    )
    async def new_session_id() -> str:
        """Return a new `session_id`, which is a UUID."""
        return str(uuid.uuid4())

    @api.post(
        "/embedded_model",
        summary="Embed an image",
        response_class=Response,
        responses={200: EMBEDDING, **problem_responses(400, 404, 413, 415, 422, 499)},
    )
    async def embedded_model(
        request: Request,
        image: Annotated[UploadFile | None, File(description="The image.")] = None,
        session_id: SessionId = None,
        cancel_pending: Annotated[
            bool, Form(description="Cancel the requests with this `session_id` that still wait.")
        ] = False,
        model_version: ModelVersion = None,
        encoding: Annotated[
            Literal["none", "compress", "npz"],
            Query(description="`compress`: the gzip of the base64 text. `npz`: all embeddings in one NumPy file."),
        ] = "none",
    ) -> Response:
        """Return the embedding of an image.

        Without `encoding=npz`, this is the single map that the 2024 clients expect. The decoders of SAM2 and SAM3 need
        more maps: `POST /from_model` recomputes them, and an `npz` file contains them.
        """
        cancelled = requests.cancel(session_id) if session_id and (cancel_pending or image is None) else 0
        if image is None:
            if session_id is None:
                raise Problem(422, "image: the file is missing")
            return PlainTextResponse(f"{cancelled} cancelled")
        pair = await engine.pair(model_version)
        content = await image.read()
        content, _ = await accept_image(content, engine.settings.max_megapixels, engine.budgets.workers)

        async def work() -> Response:
            embeddings = await engine.encode_here(content, pair)
            if encoding == "npz":
                return Response(await asyncio.to_thread(_to_npz, embeddings), media_type=NPZ)
            raw = await asyncio.to_thread(_plain, embeddings)
            engine.legacy_embeddings.remember(await asyncio.to_thread(key_of, raw), pair.name, content)
            text = await asyncio.to_thread(base64.b64encode, raw)
            if encoding == "none":
                return PlainTextResponse(text.decode())
            packed = await asyncio.to_thread(gzip.compress, text, 3, mtime=0)
            return Response(packed, headers={"Content-Type": "application/gzip", "Content-Encoding": "gzip"})

        return await requests.run(request, work(), session_id)

    @api.post(
        "/cancel_pending",
        summary="Cancel waiting requests",
        response_class=PlainTextResponse,
        responses=problem_responses(400, 413, 422),
    )
    async def cancel_pending_requests(session_id: GivenSessionId) -> str:
        """Cancel the pending requests with a `session_id`. They return 499."""
        return f"{requests.cancel(session_id)} cancelled"

    @api.post(
        "/from_model",
        summary="Get a mask from an embedding",
        **file_route(*PNG, 400, 404, 413, 422, 499),
    )
    async def from_model(
        request: Request,
        model: Annotated[UploadFile, File(description="The answer of `POST /embedded_model`, in any of its forms.")],
        x: X,
        y: Y,
        img_x: Width,
        img_y: Height,
        model_version: ModelVersion = None,
    ) -> Response:
        """Return the mask at a pixel, using an embedding."""
        check_size("the image has", (img_x, img_y), engine.settings.max_megapixels)
        content = await model.read()
        embeddings = await asyncio.to_thread(_read_embedding, content)

        async def work() -> Response:
            if isinstance(embeddings, ImageEmbeddings):
                pair = await engine.pair(variant_of(embeddings.model))
                if (embeddings.family, embeddings.model) != (pair.family.name, model_name(pair.name, ENCODER)):
                    text = f"the model of these embeddings, {embeddings.model!r:.80}, is not served here"
                    raise Problem(404, f"{text}: call POST /embedded_model again")
                found = embeddings
            else:
                pair, found = await _recover(engine, embeddings, model_version, (img_x, img_y))
            if found.image_size != (img_x, img_y):
                width, height = found.image_size
                raise Problem(
                    422, f"img_x and img_y are {img_x} and {img_y}, but the embedding is of {width} x {height} pixels"
                )
            return await _mask(engine, found, pair, x, y)

        return await requests.run(request, work())

    @api.post(
        "/prediction",
        summary="Get a mask from an image",
        **file_route(*PNG, 400, 404, 413, 415, 422, 499),
    )
    async def prediction(
        request: Request,
        image: Annotated[UploadFile, File(description="The image.")],
        x: X,
        y: Y,
        model_version: ModelVersion = None,
    ) -> Response:
        """Return the mask at a pixel of an image."""
        pair = await engine.pair(model_version)
        stored = await engine.store(await image.read())

        async def work() -> Response:
            return await _mask(engine, await engine.embed(stored, pair), pair, x, y)

        return await requests.run(request, work())

    @api.get("/models", summary="List families and variants", responses=problem_responses())
    async def models() -> dict[str, Any]:
        """List the families that are ready on Triton, each with its variants, and the default model."""
        default = await engine.pair(None)
        families: dict[str, list[str]] = {}
        for pair in engine.state.pairs.values():
            families.setdefault(pair.family.name, []).append(pair.name)
        return {"default": default.name, "models": families}

    @api.get(
        "/health",
        summary="Say whether masks can be made",
        responses={503: {"description": "Triton is gone or has no model ready."}},
        openapi_extra={"security": []},
    )
    async def health() -> JSONResponse:
        """Report whether the service can compute masks: 200, or 503 with the reason."""
        state = engine.state  # at most one second old; a request to Triton would delay the caller
        answer = {
            "status": "ok" if state.is_up else "unavailable",
            "triton": engine.settings.url,
            "models": list(state.pairs),
            "detail": state.error,
        }
        return JSONResponse(answer, status_code=200 if state.is_up else 503, headers={"Cache-Control": "no-store"})

    return api


async def _mask(engine: Engine, embeddings: ImageEmbeddings, pair: Pair, x: int, y: int) -> Response:
    prompt = {"coords": [[x, y]], "labels": [1]}

    def write(segments: Iterator[Segment]) -> bytes:
        return next(segments).to_png()

    return Response(await engine.segment(embeddings, pair, prompt, write), media_type="image/png")


async def _recover(
    engine: Engine, raw: bytes, model_version: str | None, size: tuple[int, int]
) -> tuple[Pair, ImageEmbeddings]:
    """Return the pair and embeddings for an old-style embedding: those of its image, or the map itself for SAM1."""
    source = engine.legacy_embeddings.peek(await asyncio.to_thread(key_of, raw))
    if source is not None:
        name, content = source
        pair = await engine.pair(name)
        return pair, await engine.embed(await engine.store(content), pair)
    pair = await engine.pair(model_version or "sam1")
    if len(pair.family.encoder.outputs) > 1 or len(raw) != PLAIN_BYTES:
        raise Problem(
            422,
            f"this embedding is unknown or expired, and {pair.family.name} needs more than this map: "
            "call POST /embedded_model again, or with encoding=npz, which contains everything",
            code="unknown_embedding",
        )
    name = pair.family.encoder.output_names[0]
    tensor = np.frombuffer(raw, "<f4").astype(np.float32).reshape(PLAIN_SHAPE)
    return pair, ImageEmbeddings(pair.family.name, model_name(pair.name, ENCODER), size, {name: tensor})


def _plain(embeddings: ImageEmbeddings) -> bytes:
    """Return the map with the lowest resolution as raw float32. SAM1 has only this map; SAM2 and SAM3 have more."""
    smallest = min(embeddings.values(), key=lambda tensor: tensor.shape[-1])
    return np.ascontiguousarray(smallest, "<f4").tobytes()


def _to_npz(embeddings: ImageEmbeddings) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = FilePath(folder) / "embeddings.npz"
        embeddings.save(path)
        return path.read_bytes()


def _read_embedding(content: bytes) -> bytes | ImageEmbeddings:
    """Return raw float32 of an old-style embedding, or all embeddings of an .npz."""
    if content.startswith(ZIP):
        return _read_npz(content)
    try:
        text = _unzip(content) if content.startswith(GZIP) else content
        raw = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError, zlib.error):
        raise Problem(
            422,
            "model: this is neither base64 of float32, nor its gzip, nor an .npz: send what /embedded_model answers",
        ) from None
    if len(raw) not in PLAIN_SIZES:
        raise Problem(
            422,
            f"model: these are {len(raw)} bytes, but float32 {PLAIN_SHAPE} has {PLAIN_BYTES}: send the whole embedding",
        )
    return raw


def _read_npz(content: bytes) -> ImageEmbeddings:
    try:
        if content.count(ENTRY) > MAX_ENTRIES:  # zipfile would create an object for each: a million takes seconds
            raise InputError("it has too many members")
        # The archive states the size of its members. An .npz that we have written is not compressed.
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            members = archive.zip.infolist()
        if sum(member.file_size for member in members) > 2 * len(content) + (1 << 16):
            raise InputError("it is compressed")
        with tempfile.TemporaryDirectory() as folder:
            path = FilePath(folder) / "embeddings.npz"
            path.write_bytes(content)
            embeddings = ImageEmbeddings.load(path)
    except Exception:  # noqa: BLE001 - zipfile and NumPy raise almost any exception for damaged files
        raise Problem(
            422,
            "model: this file is damaged, or holds no image embeddings: send what /embedded_model answers with "
            "encoding=npz",
        ) from None
    return embeddings


def _unzip(content: bytes) -> bytes:
    """Decompress at most the size of an embedding."""
    limit = 2 * max(PLAIN_SIZES)
    unpacked = zlib.decompressobj(wbits=31).decompress(content, limit)
    if len(unpacked) >= limit:
        raise ValueError("too large")
    return unpacked
