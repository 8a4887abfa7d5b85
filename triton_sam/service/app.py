"""The application: it connects the routes, the limits and the engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from starlette.middleware.cors import CORSMiddleware

from .. import __version__
from . import concepts, everything, exports, faults, logs, metrics, openapi, page, problems
from .adapters.adapter import AdapterRequests
from .adapters.bridge import Bridge
from .adapters.registry import find_adapters
from .api import large as large_images
from .api import live, v0, v1
from .api import videos as uploaded_videos
from .cancellation import CancellableRequests
from .engine import MODEL_HEADER, Engine
from .everything import Searches
from .hosts import TrustedHosts
from .large.folder import LargeFolder
from .middleware import Guard, HeadRequests, Observe, RootPath
from .schemas import problem_responses
from .settings import ServiceSettings
from .tracing import HEADER
from .videos.store import Videos


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
        summary=openapi.SUMMARY,
        description=openapi.DESCRIPTION,
        openapi_tags=[*openapi.TAGS, *([] if large is None else [openapi.LARGE_TAG])],
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
        tags=[openapi.SERVICE],
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
    openapi.complete(app, with_token=bool(settings.all_tokens), root_path=settings.root_path)
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
