"""Middleware for every request: id, log line, metrics, token, limits, a proxy's path prefix, and HEAD.

It is plain ASGI and buffers nothing.
"""

from __future__ import annotations

import contextlib
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .._common.text import shortened
from .._common.tracing import current_trace
from . import problems
from .adapters.adapter import Adapter
from .bodies import ADAPTER, Answer, Body, UnreadError
from .budgets import Budgets
from .hosts import HEALTH, check_origin
from .logs import LOGGER, new_request_id, request_id
from .metrics import Metrics
from .problems import Problem, answer_headers, refusals, response
from .quotas import CALLER, COUNT_UPLOAD, Caller, Callers
from .settings import ServiceSettings
from .tracing import HEADER, read_trace

SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of every response, unless it sets its own as the page does: data is not a document, and cannot be framed."""
OPEN_PATHS = ("/", "/large", "/health", "/static/", "/docs", "/openapi.json", "/favicon.ico")
"""Paths without a token, because they show nothing of users or models. The page itself requests the token."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""Methods that are counted by name; callers may invent others."""


class Observe:
    """Gives each request an id, and logs and counts it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        name = new_request_id(headers.get("x-request-id"))
        trace = read_trace(headers.get(HEADER))
        token = request_id.set(name)
        told: dict[str, str] = {}
        told_before = answer_headers.set(told)
        refused: list[Problem] = []
        refused_before = refusals.set(refused)
        started = time.monotonic()
        status = 500
        has_started = False

        async def tag(message: Message) -> None:
            nonlocal status, has_started
            if message["type"] == "http.response.start":
                status, has_started = message["status"], True
                headers = MutableHeaders(scope=message)
                headers.update({**told, "X-Request-ID": name})
                if trace is not None:
                    headers[HEADER] = trace
                for header, value in SAFETY.items():
                    headers.setdefault(header, value)
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, tag)
        except UnreadError:
            raise  # the client reads no response
        except Exception as error:
            if has_started:
                raise  # the server closes the connection, so that the client does not treat this as a complete response
            # Starlette's own handler is outside this middleware, where responses get no id.
            await response(problems.meant_by(error))(scope, receive, tag)
        finally:
            self._metrics.in_flight.dec()
            trace_id = trace.split("-")[1] if trace is not None else current_trace()
            self._book(scope, status, time.monotonic() - started, trace_id, refused)
            request_id.reset(token)
            answer_headers.reset(told_before)
            refusals.reset(refused_before)

    def _book(self, scope: Scope, status: int, seconds: float, trace_id: str | None, refused: list[Problem]) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        adapter: Adapter | None = scope.get(ADAPTER)
        if adapter is not None:
            self._metrics.by_adapter.labels(adapter.name, str(status)).inc()
        client = scope.get("client")
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1000, 1),
            "client": client[0] if client else None,
            "caller": scope.get(CALLER),
            "trace_id": trace_id,
            "detail": shortened(refused[-1].detail) if refused else None,
        }
        LOGGER.info("request", extra={"fields": fields})


class Guard:
    """Rejects requests of foreign web pages, without a token, over a quota, or beyond the budgets of the service."""

    def __init__(
        self, app: ASGIApp, settings: ServiceSettings, budgets: Budgets, callers: Callers, metrics: Metrics
    ) -> None:
        self._app = app
        self._settings = settings
        self._budgets = budgets
        self._callers = callers
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        with contextlib.ExitStack() as held:
            try:
                check_origin(scope, self._settings.origins, self._settings.allowed_hosts)
                if scope["type"] == "http":
                    receive = self._admit(scope, receive, held).receive
                    send = Answer(send, self._settings, self._budgets).send
            except Problem as problem:
                await response(problem)(scope, receive, send)
                return
            await self._app(scope, receive, send)

    def _admit(self, scope: Scope, receive: Receive, held: contextlib.ExitStack) -> Body:
        """Return the body of an admitted request; ``held`` returns its leases."""
        caller = self._caller(scope)
        if not is_open(scope["path"], scope.get(ADAPTER)):
            scope[CALLER] = caller.name
            scope[COUNT_UPLOAD] = caller.upload
            self._metrics.by_caller.labels(caller.name).inc()
            held.enter_context(caller.request())

        def arrived() -> None:
            if scope["path"] != HEALTH:
                held.enter_context(self._budgets.places.take())

        body = Body(scope, receive, self._settings, self._budgets, caller, arrived)
        held.callback(body.end)
        body.start()
        return body

    def _caller(self, scope: Scope) -> Caller:
        adapter: Adapter | None = scope.get(ADAPTER)
        if is_open(scope["path"], adapter) or scope["method"] == "OPTIONS":
            return self._callers.anybody
        given = bearer_token(Headers(scope=scope)) or (adapter.token(scope) if adapter else "")
        caller = self._callers.find(given)
        if caller is None:
            raise no_token(given, adapter.sign_in if adapter else "")
        return caller


def bearer_token(headers: Headers) -> str:
    """Return the token in the header Authorization, "" without one."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else ""


def no_token(given: str = "", how: str = "") -> Problem:
    """Return the problem for a caller without a token, or with an unknown one."""
    fault = "this token is unknown" if given else "this service needs a token"
    return Problem(
        401,
        f"{fault}: {how or 'send the header Authorization: Bearer TOKEN, with a token of this service'}",
        headers={"WWW-Authenticate": "Bearer"},
        code="token",
    )


def is_open(path: str, adapter: Adapter | None = None) -> bool:
    """Whether a path needs no token; for an adapter's path, pass the adapter."""
    if adapter is not None and path in adapter.open_paths:
        return True
    return any(path == part or (part.endswith("/") and part != "/" and path.startswith(part)) for part in OPEN_PATHS)


class RootPath:
    """Removes a proxy's path prefix from requests, unless the proxy has, and adds it to URLs in responses.

    Args:
        root: the prefix, such as ``/sam``; "" without a prefix.
    """

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not self._root:
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path == self._root and scope["type"] == "http":  # the page's links are relative to the last slash
            await RedirectResponse(f"{self._root}/")(scope, receive, send)
            return
        if path == self._root or path.startswith(f"{self._root}/"):
            raw = scope.get("raw_path") or path.encode()
            without = raw.removeprefix(self._root.encode()) or b"/"
            scope = {**scope, "path": path.removeprefix(self._root) or "/", "raw_path": without}

        async def place(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "location" in headers:
                    parts = urlsplit(headers["location"])
                    headers["location"] = parts._replace(path=self._root + parts.path).geturl()
            await send(message)

        await self._app(scope, receive, place)


class HeadRequests:
    """Handles HEAD as GET. uvicorn does not send the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        asked = {**scope, "method": "GET"}  # uvicorn reads the method in its own scope
        try:
            await self._app(asked, receive, send)
        finally:
            scope["route"] = asked.get("route")  # for the log
