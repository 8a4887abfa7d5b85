"""Requests that FastAPI cannot read, as problems that say in REST's own words what to send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from .bodies import kind_of
from .problems import MAX_FAULTS, Problem, response

MAX_NAME = 80
"""The most characters of a member's name that an answer repeats."""
IDS = {"image_id": "image", "video_id": "video"}
"""What the ids in paths name."""
UNKNOWN_MEMBER = "unknown_member"
"""The type of the error for a member that a request does not have. Its context has the ``name``."""
NO_OBJECT = frozenset({"model_attributes_type", "model_type", "dict_type"})
"""pydantic's types of errors for a body that is no JSON object, such as bytes whose header does not call them JSON."""


def install(app: FastAPI) -> None:
    """Let the application answer such requests so."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, error)


def answer(request: Request, error: RequestValidationError) -> Response:
    """Return the answer to a request that does not fit its route: 404 for an id, 415 for a wrong header, else 422."""
    found = error.errors()[:MAX_FAULTS]
    if (problem := next(filter(None, (_of_an_id(fault) for fault in found)), None)) is not None:
        return response(problem)
    if found and _is_unlabelled(request, found[0]):
        return response(Problem(415, "send JSON with the header Content-Type: application/json", code="content_type"))
    faults = [_described(fault, error.body) for fault in found]
    return response(Problem(422, faults[0]["message"] if faults else "the request cannot be read"), errors=faults)


def _of_an_id(fault: Mapping[str, Any]) -> Problem | None:
    place, *names = fault.get("loc", ())
    if place != "path" or not names or names[0] not in IDS:
        return None
    thing = IDS[names[0]]
    text = f"there is no {thing} with this id: the service gives ids of 32 hexadecimal digits"
    return Problem(404, text, code=f"unknown_{thing}")


def _is_unlabelled(request: Request, fault: Mapping[str, Any]) -> bool:
    """Whether the fault is a body that nobody read as JSON, because its header names another type or none."""
    kind = kind_of(request.headers)
    is_json = kind == "application/json" or kind.endswith("+json")
    return tuple(fault.get("loc", ())) == ("body",) and fault.get("type") in NO_OBJECT and not is_json


def _described(fault: Mapping[str, Any], body: Any) -> dict[str, str]:
    where = ".".join(str(part)[:MAX_NAME] for part in fault.get("loc", ()))
    if fault.get("type") == "json_invalid" and isinstance(body, str):
        offset = int(fault["loc"][-1])
        line, column = body.count("\n", 0, offset) + 1, offset - body.rfind("\n", 0, offset)
        reason = fault.get("ctx", {}).get("error", "not valid")
        return {"where": where, "message": f"the body is no JSON: line {line}, column {column}: {reason}"}
    message = f"{where}: {fault.get('msg', 'not valid')}"
    if fault.get("type") == UNKNOWN_MEMBER:
        where = f"{where}.{fault['ctx']['name']}"
    return {"where": where, "message": message}
