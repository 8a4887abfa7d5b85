"""Requests that FastAPI cannot read, as problems with pydantic's words and the place of the fault."""

from __future__ import annotations

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
MAX_TEXT = 200
"""The most characters of a fault that first_fault() returns."""
IDS = {"image_id": "image", "video_id": "video"}
"""What the ids in paths name."""
UNKNOWN_MEMBER = "unknown_member"
"""The type of the error for a member that a request does not have. Its context has the ``name``."""
NO_OBJECT = frozenset({"model_attributes_type", "model_type", "dict_type"})
"""pydantic's types of errors for a body that is not a JSON object, such as bytes whose header names another type."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
_BRANCH = re.compile(r"constrained-\w+|int|float|str|bool|[A-Z][A-Za-z]*|.*[\[(].*", re.DOTALL)
"""Names of types, which pydantic adds to the place of a fault in a member of several types. No member is called so."""


def install(app: FastAPI) -> None:
    """Let the application answer such requests so."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, error)


def answer(request: Request, error: RequestValidationError) -> Response:
    """Return the answer to a request that does not fit its route: 404 for an id, 415 for a wrong header, else 422."""
    faults = error.errors()[:MAX_FAULTS]
    first = _deepest(faults)
    where, *names = first["loc"]
    if where == "path" and names[0] in IDS:
        text = f"there is no {IDS[names[0]]} with this id: the service gives ids of 32 hexadecimal digits"
        return response(Problem(404, text, code=f"unknown_{IDS[names[0]]}"))
    kind = kind_of(request.headers)
    if first["type"] in NO_OBJECT and not names and kind != "application/json" and not kind.endswith("+json"):
        return response(Problem(415, "send JSON with the header Content-Type: application/json", code="content_type"))
    told = [{"where": _where(each), "message": fault_text(each)} for each in faults]
    return response(Problem(422, fault_text(first)), errors=told)


def first_fault(error: ValidationError, names: Mapping[str, str] = NO_NAMES) -> str:
    """Return one line about a fault that pydantic has found: the member, by the caller's names, and what is wrong."""
    return fault_text(_deepest(error.errors(include_url=False)), names)[:MAX_TEXT]


def fault_text(fault: Mapping[str, Any], names: Mapping[str, str] = NO_NAMES) -> str:
    """Return the line about one of pydantic's faults."""
    where, text = _place(fault, names), str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] in NO_OBJECT:  # pydantic names the class that it would make of the object
        text = "Input should be an object"
    elif fault["type"] == "json_invalid":
        text = f"this is not JSON: {fault['ctx']['error']}"
    elif text.startswith("Expected UploadFile"):
        text = "send it as a file, with a file name"
    return f"{where}: {text}" if where else text


def _deepest(faults: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the fault that lies deepest: of a member of several types, the type that is meant."""
    return max(faults, key=lambda fault: len(fault["loc"]) - bool(fault["loc"] and _is_branch(fault["loc"][-1])))


def _is_branch(part: object) -> bool:
    return isinstance(part, str) and _BRANCH.fullmatch(part) is not None


def _place(fault: Mapping[str, Any], names: Mapping[str, str] = NO_NAMES) -> str:
    parts = [str(part) for part in fault["loc"] if not _is_branch(part)]
    return ".".join(names.get(part, part)[:MAX_NAME] for part in parts)


def _where(fault: Mapping[str, Any]) -> str:
    return f"{_place(fault)}.{fault['ctx']['name']}" if fault["type"] == UNKNOWN_MEMBER else _place(fault)
