"""Messages between the page and the service on the WebSocket ``/live``; their classes describe them.

Raise VERSION here and in static/live.js with every incompatible change: the service then requests a reload from pages
of another version.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..families.base import Family, FloatArray, Size
from .faults import fault_text
from .problems import Problem, body
from .schemas import CleanupRequest, ProblemDetails, Prompt

VERSION = 2
LOGIT_STEPS = 4
"""Steps per logit of 1 in the page's int8 logits; the bound of SAM2's logits is 32."""

Lane = Literal["hover", "click"]
LANES: tuple[Lane, ...] = ("hover", "click")


class SegmentMessage(Prompt):
    """One position of the mouse, or one state of an object; it replaces the lane's earlier message."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["segment"]
    lane: Lane
    seq: int
    image: Annotated[str, Field(max_length=64)]
    model: Annotated[str | None, Field(max_length=128)] = None
    multimask: bool = False
    cleanup: CleanupRequest | None = None


class CancelMessage(BaseModel):
    """Cancels a lane's requests."""

    type: Literal["cancel"]
    lane: Lane


class StatusMessage(BaseModel):
    type: Literal["status"] = "status"
    up: bool
    models: list[str]
    detail: str | None


class ErrorMessage(ProblemDetails):
    """An error for a request; ``lane`` and ``seq`` are the request's, if it had them."""

    type: Literal["error"] = "error"
    lane: Lane | None = None
    seq: int | None = None


class MasksHeader(BaseModel):
    """The header of a binary message with masks, see pack()."""

    type: Literal["masks"] = "masks"
    lane: Lane
    seq: int
    image: str
    model: str
    scores: list[float]
    side: int
    used: list[float]
    ms: float


Message = SegmentMessage | CancelMessage
_MESSAGES: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def check_hello(message: dict[str, Any]) -> None:
    if message.get("type") != "hello" or message.get("version") != VERSION:
        text = "a page of another version, or without a hello"
        raise Problem(422, f"{text}; the service speaks version {VERSION}: reload the page", code="version")


def read_message(message: dict[str, Any]) -> Message:
    try:
        return _MESSAGES.validate_python(message)
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["type"].startswith("union_tag"):
            raise Problem(422, 'type must be "segment" or "cancel"') from None
        raise Problem(422, fault_text({**fault, "loc": fault["loc"][1:]})) from None  # without the type


def error_text(problem: Problem, message: dict[str, Any]) -> str:
    lane, seq = message.get("lane"), message.get("seq")
    known = {"lane": lane if lane in LANES else None, "seq": seq if isinstance(seq, int) else None}
    error = ErrorMessage.model_validate({**body(problem), "type": "error", **known})
    return error.model_dump_json(exclude_none=True)


def used_part(family: Family, size: Size) -> list[float]:
    """Return the part of the logits that shows the image, as fractions of width and height; the rest is padding."""
    width, height = family.resized(size)
    return [width / family.image_size, height / family.image_size]


def pack(header: MasksHeader, logits: FloatArray) -> bytes:
    """Return the binary message of masks: uint32 length of the header, the header, int8 logits."""
    text = header.model_dump_json().encode()
    steps = np.clip(np.rint(logits * LOGIT_STEPS), -127, 127)
    steps[(steps == 0) & (logits > 0)] = 1  # only the sign matters
    return b"".join((struct.pack("<I", len(text)), text, steps.astype(np.int8).tobytes()))
