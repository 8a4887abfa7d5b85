"""Converts requests that FastAPI rejects to problems with pydantic's messages and the location of the error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from .bodies import kind_of
from .problems import MAX_FAULTS, Problem, response

Model = TypeVar("Model", bound=BaseModel)

MAX_NAME = 80
"""Maximum characters of a member's name that a response repeats."""
MAX_TEXT = 200
"""Maximum characters of a message that first_fault() returns."""
IDS = {"image_id": "image", "video_id": "video"}
"""The resources of ids in paths."""
BAD_MEMBER = "bad_member"
"""The error type for a member that is unknown or of a wrong kind. Its context has the ``name``."""
NO_OBJECT = frozenset({"model_attributes_type", "model_type", "dict_type"})
"""pydantic's error types for a body that is not a JSON object, such as bytes whose header names another type."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
_BRANCH = re.compile(r"constrained-\w+|int|float|str|bool|[A-Z][A-Za-z]*|.*[\[(].*", re.DOTALL)
"""Names of types, which pydantic adds to the location of an error in a union. No member has such a name."""


def install(app: FastAPI) -> None:
    app.exception_handler(RequestValidationError)(answer)


async def answer(request: Request, error: RequestValidationError) -> Response:
    """Return the response to a request that does not fit its route: 404 for an id, 415 for a wrong header, else 422."""
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


def validated(kind: type[Model], names: Mapping[str, str] = NO_NAMES, **members: Any) -> Model:
    """Return a model with these members; invalid ones are a 422 problem that has the caller's names of members."""
    try:
        return kind(**members)
    except ValidationError as error:
        raise Problem(422, first_fault(error, names)) from None


def first_fault(error: ValidationError, names: Mapping[str, str] = NO_NAMES) -> str:
    """Return one line about an error that pydantic has found: the member, by the caller's names, and what is wrong."""
    return fault_text(_deepest(error.errors(include_url=False)), names)[:MAX_TEXT]


def fault_text(fault: Mapping[str, Any], names: Mapping[str, str] = NO_NAMES) -> str:
    """Return the line about one of pydantic's errors."""
    where, text = _place(fault, names), str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] in NO_OBJECT:  # pydantic's message names the class of the object
        text = "Input should be an object"
    elif fault["type"] == "json_invalid":
        text = f"this is not JSON: {fault['ctx']['error']}"
    elif text.startswith("Expected UploadFile"):
        text = "send it as a file, with a file name"
    return f"{where}: {text}" if where else text


def _deepest(faults: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the most deeply nested error: in a union, it belongs to the type that the caller meant."""
    return max(faults, key=lambda fault: len(fault["loc"]) - bool(fault["loc"] and _is_branch(fault["loc"][-1])))


def _is_branch(part: object) -> bool:
    return isinstance(part, str) and _BRANCH.fullmatch(part) is not None


def _place(fault: Mapping[str, Any], names: Mapping[str, str] = NO_NAMES) -> str:
    parts = [str(part) for part in fault["loc"] if not _is_branch(part)]
    return ".".join(names.get(part, part)[:MAX_NAME] for part in parts)


def _where(fault: Mapping[str, Any]) -> str:
    return f"{_place(fault)}.{fault['ctx']['name']}" if fault["type"] == BAD_MEMBER else _place(fault)
