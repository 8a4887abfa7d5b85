"""Every error of the service as RFC 9457 problem+json: a table maps our exceptions to HTTP statuses."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from .._common import strict_json
from .._common.text import one_line
from ..errors import (
    ImageError,
    InferenceError,
    InputError,
    MissingDependencyError,
    ModelNotReadyError,
    SamError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
    UnknownImageError,
    UnknownSessionError,
)
from .logs import LOGGER, request_id

MEDIA_TYPE = "application/problem+json"
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a request that its client cancelled."""
CANCELLED_HEADERS = {"Cancelled-By-Client": "1"}
RETRY_SECONDS = "2"
MAX_FAULTS = 10
"""Maximum number of faults of a request in a response."""

TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Too slow",
    409: "Conflict",
    411: "Length required",
    413: "Too large",
    415: "Wrong kind of file",
    421: "Wrong host",
    422: "Cannot be used",
    429: "Too many requests",
    499: "Cancelled by client",
    500: "Internal error",
    501: "Not installed",
    502: "Triton failed",
    503: "Unavailable",
    504: "Timed out",
}

STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (UnknownImageError, 503),  # Triton evicted an image again at once: its cache is too small; try again
    (UnknownSessionError, 503),  # the same for a video's session
    (ImageError, 422),
    (InputError, 422),
    (ModelNotReadyError, 503),
    (ServerBusyError, 503),
    (ServerUnreachableError, 503),
    (ServerTimeoutError, 504),
    (InferenceError, 502),
    (MissingDependencyError, 501),
)
"""HTTP statuses by error; the first matching class counts."""


class Problem(HTTPException):
    """An error that the service returns as problem+json.

    It is an HTTPException, because FastAPI turns every other error while reading a body into a 400.

    Args:
        code: a stable word for programs, returned as ``code``.
    """

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.status = status
        self.code = code


ErrorForm = Callable[[Problem], Mapping[str, Any] | str]
error_form: ContextVar[ErrorForm | None] = ContextVar("error_form", default=None)
"""Converts a problem to the body of the response while an adapter handles a request. None: problem+json."""


answer_headers: ContextVar[dict[str, str] | None] = ContextVar("answer_headers", default=None)
"""Additional headers of the response, for any route; see tell()."""


refusals: ContextVar[list[Problem] | None] = ContextVar("refusals", default=None)
"""The problem of the response, for the log: some tools show none of it."""


def tell(header: str, value: str) -> None:
    """Add a header to the response to the current task's request, if there is one."""
    headers = answer_headers.get()
    if headers is not None:
        headers[header] = value


def cancelled() -> Problem:
    return Problem(
        CLIENT_CLOSED_REQUEST, "the client cancelled this request", headers=CANCELLED_HEADERS, code="cancelled"
    )


def body(problem: Problem, **extra: Any) -> dict[str, Any]:
    members = {
        "type": "about:blank",
        "title": TITLES.get(problem.status, "Error"),
        "status": problem.status,
        "detail": problem.detail,
        "request_id": request_id.get(),
    }
    if problem.code is not None:
        members["code"] = problem.code
    return {**members, **extra}


def response(problem: Problem, **extra: Any) -> Response:
    headers = {**(problem.headers or {}), "Cache-Control": "no-store"}
    told = refusals.get()
    if told is not None:
        told.append(problem)
    form = error_form.get()
    if form is None:
        return Response(strict_json.dumps(body(problem, **extra)), problem.status, headers, MEDIA_TYPE)
    content = form(problem)
    kind = PlainTextResponse if isinstance(content, str) else JSONResponse
    return kind(content, problem.status, headers)


def meant_by(error: Exception) -> Problem:
    """Return the problem for any exception. Unexpected exceptions are logged."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return Problem(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, SamError):
        status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
        return Problem(status, one_line(error), headers={"Retry-After": RETRY_SECONDS} if status == 503 else {})
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        LOGGER.error("no space left for temporary files", extra={"fields": {"folder": tempfile.gettempdir()}})
        detail = "the disk of the service is full: its operator must free space"
        return Problem(503, detail, headers={"Retry-After": RETRY_SECONDS}, code="disk_full")
    LOGGER.error("unexpected error", exc_info=error)
    return Problem(500, "an error of the service itself; its log has the details")


def install(app: FastAPI) -> None:
    async def told(_: Request, error: Exception) -> Response:
        return response(meant_by(error))

    for kind in (HTTPException, SamError, Exception):
        app.add_exception_handler(kind, told)
