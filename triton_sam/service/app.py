"""The application: it connects the routes, the limits and the engine, and completes the OpenAPI document."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from starlette.middleware.cors import CORSMiddleware

from .. import __version__
from . import concepts, everything, exports, faults, logs, metrics, page, problems
from .adapters.adapter import AdapterRequests
from .adapters.bridge import Bridge
from .adapters.registry import find_adapters
from .api import large as large_images
from .api import live, v0, v1
from .api import videos as uploaded_videos
from .cancellation import CancellableRequests
from .concepts import FindAnswer
from .engine import MODEL_HEADER, Engine
from .everything import EverythingAnswer, Searches
from .hosts import TrustedHosts
from .large.folder import LargeFolder
from .middleware import Guard, HeadRequests, Observe, RootPath
from .schemas import ProblemDetails, SegmentAnswer, problem_responses
from .settings import ServiceSettings
from .tracing import HEADER
from .videos.store import Videos

SUMMARY = "You click, and the service answers with a mask."
DESCRIPTION = """Segment Anything on NVIDIA Triton.

With `/v1`, you upload an image once, and then ask for masks by its id. The other routes keep the contract of the
service of 2024. Errors are problem+json (RFC 9457). Every answer carries the header `X-Request-ID`.
"""
SERVICE = "service"
"""The tag of the routes that concern the service itself."""
TAGS = [
    {"name": "v1", "description": "Images: upload an image once, then request masks by its id."},
    {"name": "v1 videos", "description": "Videos: upload a video, prompt objects in any frame, and track them."},
    {"name": "2024 contract", "description": "The routes of the service of 2024, for programs that were made for it."},
    {"name": SERVICE, "description": "The service itself: its metrics, and the WebSocket of its page."},
]
LARGE_TAG = {
    "name": "v1 large images",
    "description": "Slides and maps in a folder of the service: look at parts, and segment by clicks.",
}
"""The tag of the routes of a service with `--large-images`."""


def _problem(description: str) -> dict[str, Any]:
    reference = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
    return {"description": description, "content": {"application/problem+json": reference}}


LIVE: dict[str, Any] = {
    "get": {
        "tags": [SERVICE],
        "summary": "Open the WebSocket of the page",
        "operationId": "live",
        "description": "Upgrade the connection to a WebSocket, on which the page sends positions of the mouse and gets "
        "masks. Other programs use `/v1`.\n\nThe page sends `hello` with its `version` first, and then `segment` and "
        "`cancel`. The service sends `status`, `masks` and `error`. `masks` is binary, and the others are JSON. "
        "triton_sam/service/messages.py defines their members.\n\nA browser names a token as the subprotocol "
        "`triton-sam.token.` with the token in base64url behind it, and also offers the subprotocol `triton-sam`.",
        "parameters": [
            {
                "name": "Sec-WebSocket-Protocol",
                "in": "header",
                "required": False,
                "description": "The subprotocols that the page offers.",
                "schema": {"type": "string", "examples": ["triton-sam, triton-sam.token.c2VjcmV0"]},
            }
        ],
        "responses": {
            "101": {"description": "The WebSocket is open."},
            **{str(status): each for status, each in problem_responses().items() if status in (401, 421, 429, 503)},
            "403": _problem("Pages of this origin may not use the service: see `--cors`."),
            "404": _problem("The request is not a WebSocket handshake."),
        },
    }
}


def _complete_openapi(app: FastAPI, *, with_token: bool, root_path: str = "") -> None:
    """Complete FastAPI's document, and replace its error form by ours."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            document["paths"]["/live"] = LIVE
            parts = document.setdefault("components", {})
            schemas = parts.setdefault("schemas", {})
            for model in (ProblemDetails, SegmentAnswer, EverythingAnswer, FindAnswer):
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            if root_path:
                document["servers"] = [{"url": root_path}]
            if with_token:
                parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"token": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def create_app(settings: ServiceSettings) -> FastAPI:
    """Return the application. It opens no connections before startup."""
    figures = metrics.Metrics()
    engine = Engine(settings, figures)
    videos = Videos(engine)
    large = None if settings.large_images is None else LargeFolder(settings.large_images, engine)
    searches = Searches(engine)
    requests = CancellableRequests(settings.timeout, figures)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        await videos.start()
        try:
            yield
        finally:
            searches.stop()
            await videos.stop()
            if large is not None:
                large.close()
            await engine.stop()
            logs.LOGGER.info("stopped")

    app = FastAPI(
        title="triton_sam",
        summary=SUMMARY,
        description=DESCRIPTION,
        openapi_tags=[*TAGS, *([] if large is None else [LARGE_TAG])],
        version=__version__,
        docs_url=None,  # FastAPI's page loads its parts from other sites; ours is static/docs.html
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.engine = engine
    app.state.videos = videos
    app.state.searches = searches
    for router in (
        page.router(settings),
        live.router(engine),
        v0.router(engine, requests),
        v1.router(engine, requests),
        everything.router(engine, searches, requests),
        concepts.router(engine, requests),
        exports.router(engine, requests),
        uploaded_videos.router(engine, videos, requests),
    ):
        app.include_router(router)
    if large is not None:
        app.include_router(large_images.router(engine, large, requests))
    adapters = find_adapters(settings.adapters)
    for adapter in adapters:
        app.include_router(adapter.router(Bridge(engine, requests, searches, videos)), include_in_schema=False)
    app.mount("/static", page.PageFiles(directory=page.STATIC), name="static")

    @app.get(
        "/metrics",
        tags=[SERVICE],
        summary="Show metrics",
        response_description="The metrics.",
        response_class=PlainTextResponse,
        responses=problem_responses(),
    )
    async def show_metrics() -> Response:
        """Return the counters of the service in Prometheus text format.

        Their names begin with `triton_sam_service_` and `process_`. If tokens are configured, any token may read them.
        """
        return Response(figures.text(), media_type=metrics.CONTENT_TYPE)

    problems.install(app)
    faults.install(app)
    _complete_openapi(app, with_token=bool(settings.all_tokens), root_path=settings.root_path)
    # The middleware that is added last is the outermost.
    app.add_middleware(HeadRequests)
    app.add_middleware(Guard, settings=settings, budgets=engine.budgets, callers=engine.callers, metrics=figures)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID", HEADER],
            expose_headers=["X-Request-ID", "Cancelled-By-Client", "Location", "Retry-After", MODEL_HEADER],
        )
    if not settings.all_tokens:
        app.add_middleware(TrustedHosts, allowed=settings.allowed_hosts)
    app.add_middleware(Observe, metrics=figures)
    if adapters:
        app.add_middleware(AdapterRequests, adapters=adapters)
    app.add_middleware(RootPath, root=settings.root_path)
    return app
