"""The page and its files. There is no build step, and the page loads nothing from other sites."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from .._common.bundle import bundled
from .problems import Problem
from .settings import ServiceSettings

STATIC = Path(__file__).parent / "static"
SAMPLES = ("shapes.jpg", "coffee.jpg", "street.jpg", "cells.jpg")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self' ws: wss:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = {"Content-Security-Policy": POLICY}
"""In addition to every response's headers, see middleware.py."""
REVALIDATED = {"Cache-Control": "no-cache"}


class PageFiles(StaticFiles):
    """Files of the page, which browsers revalidate at each use."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update({**SAFETY, **REVALIDATED})
        return answer


def router(settings: ServiceSettings) -> APIRouter:
    api = APIRouter(include_in_schema=False)

    @api.get("/")
    async def page() -> Response:
        document = _document("index.html")
        if settings.large_images is None:
            return document
        return _html(bytes(document.body).replace(b'href="large" hidden', b'href="large"'))

    @api.get("/large")
    async def large() -> Response:
        if settings.large_images is None:
            raise Problem(404, "this service has no large images: start it with --large-images DIR")
        return _document("large.html")

    @api.get("/docs")
    async def docs() -> Response:
        return _document("docs.html")

    @api.get("/favicon.ico")
    async def icon() -> Response:
        return Response((STATIC / "icon.svg").read_bytes(), media_type="image/svg+xml")

    @api.get("/static/samples/{name}")
    async def sample(name: str) -> Response:
        if name not in SAMPLES:
            return Response(status_code=404)
        return Response((bundled("test/images") / name).read_bytes(), media_type="image/jpeg", headers=REVALIDATED)

    return api


def _document(name: str) -> Response:
    return _html((STATIC / name).read_bytes())


def _html(content: bytes) -> Response:
    return Response(content, media_type="text/html; charset=utf-8", headers={**SAFETY, **REVALIDATED})
