"""Steps for every request: id, log line, metrics, token and limits. This is plain ASGI, which buffers nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .logs import LOGGER, new_request_id, request_id
from .metrics import Metrics
from .problems import Problem, response
from .settings import Settings

DRAIN_SECONDS = 0.3
"""The service reads an oversized body for this long, so that the client can read the reason for the refusal."""
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of every answer that has none of its own (the page has): data is not a document, and nobody frames it."""
OPEN_PATHS = ("/", "/health", "/static/", "/docs", "/openapi.json", "/favicon.ico")
"""What needs no token: nothing there comes from users or from models. The page asks for the token by itself."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""Methods that are counted by name; a caller may make up others."""


class Observe:
    """Gives each request an id, logs and counts it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = new_request_id(Headers(scope=scope).get("x-request-id"))
        token = request_id.set(name)
        started = time.monotonic()
        status = 500

        async def tag(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = name
                for header, value in SAFETY.items():
                    headers.setdefault(header, value)
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, tag)
        finally:
            self._metrics.in_flight.dec()
            self._book(scope, status, time.monotonic() - started)
            request_id.reset(token)

    def _book(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        client = scope.get("client")
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1000, 1),
            "client": client[0] if client else None,
        }
        LOGGER.info("request", extra={"fields": fields})


class Guard:
    """Refuses requests without the token, oversized requests, and too many requests at a time."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_token(scope)
            self._check_length(scope)
            if self._running >= self._settings.max_requests:
                raise Problem(503, "too many requests at a time", headers={"Retry-After": "1"}, code="busy")
        except Problem as problem:
            await _refuse(problem, scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, _limited(receive, self._settings.max_body), send)
        finally:
            self._running -= 1

    def _check_token(self, scope: Scope) -> None:
        if self._settings.token is None or is_open(scope["path"]) or scope["method"] == "OPTIONS":
            return
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not same_token(given.strip(), self._settings.token):
            raise Problem(
                401,
                "this service needs a token: send the header Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": "Bearer"},
                code="token",
            )

    def _check_length(self, scope: Scope) -> None:
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            raise Problem(400, "Content-Length is no number")
        if int(length) > self._settings.max_body:
            raise _too_large(self._settings.max_body)


def is_open(path: str) -> bool:
    """Whether a path needs no token."""
    return any(path == part or (part.endswith("/") and part != "/" and path.startswith(part)) for part in OPEN_PATHS)


def same_token(given: str, expected: str) -> bool:
    """Compare two tokens in a time that does not reveal how much of them agrees."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def allowed_origin(headers: Headers, origins: Sequence[str]) -> bool:
    """Whether a browser's page of that origin may open a WebSocket; programs send no origin."""
    origin = headers.get("origin")
    if origin is None or "*" in origins or origin in origins:
        return True
    return origin.partition("://")[2] == headers.get("host")


def _limited(receive: Receive, limit: int) -> Receive:
    """Count what is read, for bodies that do not say their length."""
    read = 0

    async def counted() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b"")) if message["type"] == "http.request" else 0
        if read > limit:
            problem = _too_large(limit)
            raise HTTPException(problem.status, problem.detail, problem.headers)  # any other one, FastAPI makes a 400
        return message

    return counted


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the request is larger than {limit / (1 << 20):g} MiB", headers={"Connection": "close"})


async def _refuse(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer before the body has been read, without leaving a client that still sends in the dark."""
    if problem.status == 413 and "100-continue" not in Headers(scope=scope).get("expect", "").lower():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_drain(receive), DRAIN_SECONDS)
    await response(problem)(scope, receive, send)


async def _drain(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            return
