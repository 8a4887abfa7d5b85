"""Messages of the page and the service on the WebSocket ``/live``; their classes describe them.

Raise VERSION here and in static/live.js with every incompatible change: the service then asks pages of another version
to reload.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..families.base import Family, FloatArray, Size
from .faults import fault_text
from .problems import Problem
from .schemas import CleanupRequest, ProblemDetails, Prompt

VERSION = 2
LOGIT_STEPS = 4
"""Steps of a logit of 1 in the int8 that the page gets; 32 is the bound of SAM2's logits."""

Lane = Literal["hover", "click"]
LANES: tuple[Lane, ...] = ("hover", "click")


class Hello(BaseModel):
    """The page's first message."""

    type: Literal["hello"]
    version: int


class SegmentMessage(Prompt):
    """One position of the mouse, or one state of an object; it takes the place of the lane's earlier one."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["segment"]
    lane: Lane
    seq: int
    image: Annotated[str, Field(max_length=64)]
    model: Annotated[str | None, Field(max_length=128)] = None
    multimask: bool = False
    cleanup: CleanupRequest | None = None


class CancelMessage(BaseModel):
    """Nothing of a lane is wanted any more."""

    type: Literal["cancel"]
    lane: Lane


class StatusMessage(BaseModel):
    """Whether masks can be had: the answer to a hello, and then whenever it changes."""

    type: Literal["status"] = "status"
    up: bool
    models: list[str]
    detail: str | None


class ErrorMessage(ProblemDetails):
    """A request cannot be answered; ``lane`` and ``seq`` are those of the request where it had them."""

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


def read_hello(message: dict[str, Any]) -> Hello:
    """Read the page's first message."""
    try:
        hello = Hello.model_validate(message)
    except ValidationError:
        raise _outdated("without a hello that says its version") from None
    if hello.version != VERSION:
        raise _outdated(f"of version {hello.version}")
    return hello


def read_message(message: dict[str, Any]) -> Message:
    """Read any later message of the page."""
    try:
        return _MESSAGES.validate_python(message)
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["type"].startswith("union_tag"):
            raise Problem(422, 'type must be "segment" or "cancel"') from None
        raise Problem(422, fault_text({**fault, "loc": fault["loc"][1:]})) from None  # without the type


def error_message(members: dict[str, Any], message: dict[str, Any]) -> ErrorMessage:
    """Return the answer to a message that cannot be answered otherwise."""
    lane, seq = message.get("lane"), message.get("seq")
    known = {"lane": lane if lane in LANES else None, "seq": seq if isinstance(seq, int) else None}
    return ErrorMessage.model_validate({**members, "type": "error", **known})


def used_part(family: Family, size: Size) -> list[float]:
    """Return which part of the logits, as fractions of width and height, shows the image; the rest is padding."""
    width, height = family.resized(size)
    return [width / family.image_size, height / family.image_size]


def pack(header: MasksHeader, logits: FloatArray) -> bytes:
    """Return the binary message of masks: uint32 length of the header, the header, int8 logits."""
    text = header.model_dump_json().encode()
    steps = np.clip(np.rint(logits * LOGIT_STEPS), -127, 127)
    steps[(steps == 0) & (logits > 0)] = 1  # the sign is what counts
    return b"".join((struct.pack("<I", len(text)), text, steps.astype(np.int8).tobytes()))


def _outdated(said: str) -> Problem:
    return Problem(422, f"a page {said}; the service speaks version {VERSION}: reload the page", code="version")
