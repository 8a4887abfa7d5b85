"""Requests that FastAPI cannot read, as problems that say in REST's own words what to send."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
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
MAX_TEXT = 200
"""The most characters of a fault that first_fault() returns."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
_BRANCH = re.compile(r"constrained-\w+|int|float|str|bool|[A-Z][A-Za-z]*|.*[\[(].*", re.DOTALL)
"""Names of types, which pydantic adds to the place of a fault in a member of several types. No member is called so."""
_ID_PATTERN = "^[0-9a-f]{32}$"


def install(app: FastAPI) -> None:
    """Let the application answer such requests so."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, error)


def answer(request: Request, error: RequestValidationError) -> Response:
    """Return the answer to a request that does not fit its route: 404 for an id, 415 for a wrong header, else 422."""
    found = _meant(error.errors()[:MAX_FAULTS])
    if (problem := next(filter(None, (_of_an_id(fault) for fault in found)), None)) is not None:
        return response(problem)
    if found and _is_unlabelled(request, found[0]):
        return response(Problem(415, "send JSON with the header Content-Type: application/json", code="content_type"))
    faults = [_described(fault, error.body) for fault in found]
    return response(Problem(422, faults[0]["message"] if faults else "the request cannot be read"), errors=faults)


def first_fault(error: ValidationError, names: Mapping[str, str] = NO_NAMES) -> str:
    """Return one line about the first fault that pydantic has found: the member, and what is wrong with it.

    Args:
        error: the error.
        names: the names that the caller has for members, by ours.
    """
    return fault_text(_meant(error.errors(include_url=False))[0], names)[:MAX_TEXT]


def fault_text(fault: Mapping[str, Any], names: Mapping[str, str] = NO_NAMES) -> str:
    """Return the line about one of pydantic's faults, without the words that only programmers of pydantic know.

    Args:
        fault: the fault.
        names: see first_fault().
    """
    where = _place(fault, names)
    return f"{where}: {_told(fault)}" if where else _told(fault)


def _meant(faults: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out that a member is of none of the other types that it may have, where it is of one but has a fault."""
    others = {_member(fault) for fault in faults if not _is_other_type(fault)}
    return [fault for fault in faults if not _is_other_type(fault) or _member(fault) not in others]


def _member(fault: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(itertools.takewhile(lambda part: not _is_branch(part), fault.get("loc", ())))


def _is_other_type(fault: Mapping[str, Any]) -> bool:
    return any(map(_is_branch, fault.get("loc", ())[-1:])) and str(fault.get("type")).endswith("_type")


def _is_branch(part: object) -> bool:
    return isinstance(part, str) and _BRANCH.fullmatch(part) is not None


def _place(fault: Mapping[str, Any], names: Mapping[str, str] = NO_NAMES) -> str:
    parts = [str(part) for part in fault.get("loc", ()) if not _is_branch(part)]
    return ".".join(names.get(part, part)[:MAX_NAME] for part in parts)


def _told(fault: Mapping[str, Any]) -> str:
    kind, facts, given = fault.get("type"), fault.get("ctx", {}), fault.get("input")
    if kind == "missing":
        return "it is missing"
    if kind in NO_OBJECT:  # pydantic names the class that it would make of the object
        return "it must be an object"
    if kind == "string_pattern_mismatch":
        is_id = facts.get("pattern") == _ID_PATTERN
        return "an id has 32 hexadecimal digits" if is_id else "it has a character that is not allowed"
    if kind in ("too_short", "too_long"):
        least, bound = kind == "too_short", facts["min_length" if kind == "too_short" else "max_length"]
        return f"it must have at {'least' if least else 'most'} {bound} {'item' if bound == 1 else 'items'}"
    if kind == "literal_error" and "labels" in fault["loc"] and type(given) is int:
        return f"{given} is unknown: use 1 (foreground) or 0 (background)"
    message = str(fault.get("msg", "not valid")).removeprefix("Value error, ")
    return "send it as a file, with a file name" if message.startswith("Expected UploadFile") else message


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
    where = _place(fault)
    if fault.get("type") == "json_invalid" and isinstance(body, str):
        offset = int(fault["loc"][-1])
        line, column = body.count("\n", 0, offset) + 1, offset - body.rfind("\n", 0, offset)
        reason = fault.get("ctx", {}).get("error", "not valid")
        return {"where": where, "message": f"the body is no JSON: line {line}, column {column}: {reason}"}
    message = fault_text(fault)
    if fault.get("type") == UNKNOWN_MEMBER:
        where = f"{where}.{fault['ctx']['name']}"
    return {"where": where, "message": message}
