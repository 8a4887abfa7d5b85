"""Converts requests to prompts for the clients, and masks to the formats of /v1."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from .._common import strict_json
from ..families.base import Family, FloatArray, Size
from ..masks.boxes import corner_and_size
from ..masks.cleanup import Cleanup
from ..masks.segment import Format, Segment
from ..wire.contract import MAX_POINTS
from .problems import Problem
from .schemas import BINARY, FORMATS, Mask, MaskInput, Prompt, SegmentAnswer, SegmentRequest

JSON = "application/json"
_QUALITY = re.compile(r"[01](\.[0-9]{0,3})?")

MAX_MASK_PIXELS = 400_000_000


def client_prompt(request: SegmentRequest) -> dict[str, Any]:
    """Return coords, labels, box, mask_input and cleanup for SpeculativeSAM2Client.segment_each_async()."""
    return {
        **coordinates(_objects(request), has_mask=request.mask is not None),
        "mask_input": None if request.mask is None else _logits(request.mask),
        "cleanup": None if request.cleanup is None else request.cleanup.to_cleanup(),
    }


def coordinates(objects: Sequence[Prompt], *, has_mask: bool = False) -> dict[str, Any]:
    """Return coords, labels and box of objects for the clients."""
    if not has_mask and not any(prompt.points or prompt.box is not None for prompt in objects):
        raise Problem(422, "the prompt is empty: give `points`, `box`, or both")
    with_points = [prompt for prompt in objects if prompt.points]
    with_box = [prompt for prompt in objects if prompt.box is not None]
    if any(part and len(part) != len(objects) for part in (with_points, with_box)):
        raise Problem(
            422, "all objects must have points, or all a box, or all both: send the other objects in another call"
        )
    if any(prompt.labels is not None and len(prompt.labels) != len(prompt.points) for prompt in objects):
        raise Problem(422, "labels must hold one label for each point")
    _check_points(objects, len(with_box))
    coords = [prompt.points for prompt in objects] if with_points else None
    labels = [prompt.labels or [1] * len(prompt.points) for prompt in objects] if with_points else None
    return {
        "coords": coords,
        "labels": labels,
        "box": [prompt.box for prompt in objects] if with_box else None,
    }


def clean_previews(logits: FloatArray, prompt: Prompt, cleanup: Cleanup, family: Family, size: Size) -> FloatArray:
    """Return one object's candidate logits, float32 (M,S,S), cleaned for an outline on the screen."""
    cells = np.array(family.scale(size)) * family.mask_size / family.image_size
    labels = prompt.labels or [1] * len(prompt.points)
    clicks = [point for point, label in zip(prompt.points, labels, strict=True) if label]
    points = np.array(clicks, np.float32).reshape(-1, 2) * cells
    box = None if prompt.box is None else np.array(prompt.box, np.float32) * np.tile(cells, 2)
    return np.stack([cleanup.clean_preview(each, points, box) for each in logits])


def check_amount(request: SegmentRequest, size: Size, family: Family) -> None:
    """Reject a request whose masks would take too much memory."""
    count = len(_objects(request)) * (family.candidates if request.multimask else 1)
    if count * size[0] * size[1] > MAX_MASK_PIXELS:
        raise Problem(
            422, f"{count} masks of {size[0]} x {size[1]} pixels are too many for one call: send fewer objects"
        )


def choose_format(asked: str | None, accept: str) -> tuple[Format, bool]:
    """Return the format of the masks, and whether the response is one file of that format instead of JSON with masks.

    Args:
        asked: the format in the request. None: use the header Accept.
    """
    preferred = next(filter(None, map(_format_of, _accepted(accept))), None)
    if asked is None and preferred is None and accept.strip():
        *others, last = media_types()
        raise Problem(406, f"the service sends masks as {', '.join(others)} or {last}: name one of them in Accept")
    form = FORMATS[asked] if asked is not None else preferred or next(iter(FORMATS.values()))
    return form, form.document is not None and (form.encode is None or form is preferred)


def write_answer(
    answer: SegmentAnswer, segments: Iterable[Segment], form: Format, request: SegmentRequest, started: float
) -> bytes:
    """Return a JSON response. Masks are encoded one by one, so that only one is in memory."""
    masks = [_mask(segment, form, request).model_dump_json(exclude_none=True).encode() for segment in segments]
    answer.milliseconds = round((time.monotonic() - started) * 1000, 2)
    return with_list(answer, "masks", masks)


def to_json(value: Any) -> bytes:
    """Return compact JSON. All other threads wait: write the parts of a long document one by one in a worker."""
    return strict_json.dumps(value, separators=(",", ":")).encode()


def with_list(answer: BaseModel, name: str, items: Iterable[bytes]) -> bytes:
    """Return a JSON response with items, each a JSON document, in its list ``name``, which is empty."""
    before, after = answer.model_dump_json(exclude_none=True).split(f'"{name}":[]')
    return b"".join((before.encode(), f'"{name}":['.encode(), b",".join(items), b"]", after.encode()))


def _mask(segment: Segment, form: Format, request: SegmentRequest) -> Mask:
    mask = Mask(
        object=segment.object_index,
        candidate=segment.candidate,
        score=segment.score,
        area=segment.area,
        bbox=segment.box and corner_and_size(segment.box),
        **{form.name: form.to_json(segment, request.tolerance)},
    )
    if request.logits and segment.logits is not None:
        mask.logits = MaskInput(
            data=base64.b64encode(segment.logits.astype("<f4").tobytes()).decode(), size=segment.logits.shape[-1]
        )
    return mask


def media_types() -> dict[str, dict[str, Any]]:
    """Return the media types of masks with their schemas: JSON with masks, and the formats' files."""
    files = {
        form.media_type: BINARY if form.is_binary else {"type": "object"} for form in FORMATS.values() if form.document
    }
    return {JSON: {"$ref": "#/components/schemas/SegmentAnswer"}, **files}


def _format_of(media_type: str) -> Format | None:
    """Return the first format that matches a media type of the header Accept; image/* and */* are patterns."""
    prefix = "" if media_type == "*/*" else media_type.removesuffix("*")
    fits = str.startswith if media_type.endswith("/*") else str.__eq__
    return next((form for form in FORMATS.values() if fits(form.media_type, prefix)), None)


def _accepted(accept: str) -> list[str]:
    """Return the media types of a header Accept, the preferred one first."""
    wanted = []
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name == "q":
                quality = float(value) if _QUALITY.fullmatch(value) else 0.0
        if quality > 0:
            wanted.append((quality, kind))
    return [kind for _, kind in sorted(wanted, key=lambda entry: -entry[0])]


def _objects(request: SegmentRequest) -> list[Prompt]:
    if request.objects is None:
        return [request]
    if request.points or request.box is not None or request.labels is not None:
        raise Problem(422, "give either objects, or points and a box for a single object")
    return list(request.objects)


def _check_points(objects: Sequence[Prompt], boxes: int) -> None:
    """Reject more points than a session model accepts: the client would wait for the embeddings, 17 MB."""
    longest = max(len(prompt.points) for prompt in objects)
    count = len(objects) * longest + 2 * boxes
    if count > MAX_POINTS:
        raise Problem(
            422,
            f"{count} points: one call takes {MAX_POINTS}, a box as two, and each object as many as the longest list",
        )


def _logits(mask: MaskInput) -> Any:
    try:
        values = np.frombuffer(base64.b64decode(mask.data, validate=True), "<f4")
        return values.reshape(mask.size, mask.size)
    except (ValueError, binascii.Error):
        raise Problem(422, f"mask.data must be base64 of {mask.size} x {mask.size} float32") from None
