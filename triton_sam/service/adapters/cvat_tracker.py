"""CVAT's tracker.

Each call of the tracker has one frame, shapes to start tracking, and states of tracked shapes. A state refers to an
object in a session of the service. CVAT signs the state and returns it with the next frame.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from fastapi import Request, Response
from pydantic import Field

from ...families.base import Size
from ...masks.boxes import mask_to_box
from ...masks.polygons import mask_to_polygons
from ...masks.rle import BoolArray, mask_to_rle
from ...tracks.records import MaskRecord
from ..engine import Pair
from ..problems import Problem
from ..store import StoredImage
from ..videos.sessions import unknown
from .bridge import Bridge, Lenient, Target, filled_polygon, json_answer

MAX_SHAPES = 64
"""Maximum number of objects in one call."""
MAX_SESSIONS = 16
"""Maximum number of sessions in one call. Each call with shapes without states starts a session."""
_STATE = re.compile(r"triton-sam/([0-9a-f]{32})/([1-9][0-9]{0,3})/([rpmdRPMD])")

Kind = Literal["rectangle", "polygon", "mask", "points"]
LETTERS: dict[str, Kind] = {"r": "rectangle", "p": "polygon", "m": "mask", "d": "points"}


class Typed(Lenient):
    type: Kind
    points: list[float] = Field(max_length=1 << 20)


class TrackCall(Lenient):
    """One frame with shapes and states; a state takes precedence over the shape at the same index."""

    image: str
    shapes: list[Typed | list[float] | None] = Field(default_factory=list, max_length=MAX_SHAPES)
    states: list[Any] = Field(default_factory=list, max_length=MAX_SHAPES)


@dataclass(frozen=True)
class State:
    """A tracked object of a session.

    Args:
        is_typed: whether shapes contain their type. Older versions of CVAT send rectangles as lists of numbers.
    """

    session: str
    number: int
    kind: Kind
    is_typed: bool

    def __str__(self) -> str:
        letter = next(letter for letter, kind in LETTERS.items() if kind == self.kind)
        return f"triton-sam/{self.session}/{self.number}/{letter if self.is_typed else letter.upper()}"


async def track(bridge: Bridge, request: Request, pair: Pair, call: TrackCall) -> Response:
    """Return the shapes of all objects in the frame, and their states."""
    image = await bridge.image(call.image)
    count = max(len(call.shapes), len(call.states))
    states = [state_of(each) for each in [*call.states, *[None] * count][:count]]
    shapes = [*call.shapes, *[None] * count][:count]
    followed = {place: state for place, state in enumerate(states) if state is not None}
    begun = {place: shape for place, shape in enumerate(shapes) if shape is not None and place not in followed}
    if len({state.session for state in followed.values()}) > MAX_SESSIONS:
        raise Problem(422, f"the objects of one call may belong to {MAX_SESSIONS} sessions")
    typed = {place: shape if isinstance(shape, Typed) else untyped(shape) for place, shape in begun.items()}
    drawn = await bridge.in_thread(image.size, typed.values(), lambda each: drawn_of(each, image.size))
    found = await _follow(bridge, request, image, followed)
    if drawn:
        session, masks = await bridge.run(request, bridge.videos.begin(image, pair, drawn))
        for number, (place, record) in enumerate(zip(typed, masks, strict=True), 1):
            found[place] = record, State(session, number, typed[place].type, isinstance(begun[place], Typed))
    ordered = [found.get(place) for place in range(count)]
    shown = await bridge.in_thread(image.size, ordered, lambda each: None if each is None else shape_of(*each))
    return json_answer({"shapes": shown, "states": [None if each is None else str(each[1]) for each in ordered]})


async def _follow(
    bridge: Bridge, request: Request, image: StoredImage, states: dict[int, State]
) -> dict[int, tuple[MaskRecord, State]]:
    """Return the masks of tracked objects in the frame, by index in the call."""
    wanted: defaultdict[str, list[int]] = defaultdict(list)
    for state in states.values():
        wanted[state.session].append(state.number)
    if not wanted:
        return {}
    masks = await bridge.run(request, bridge.videos.track(image, wanted))
    by_object = {
        (name, number): record
        for name, numbers in wanted.items()
        for number, record in zip(numbers, masks[name], strict=True)
    }
    return {place: (by_object[state.session, state.number], state) for place, state in states.items()}


def state_of(value: Any) -> State | None:
    """Parse a state; None stands for an object that is not tracked yet."""
    if value is None:
        return None
    match = _STATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise unknown()
    session, number, letter = match.groups()
    return State(session, int(number), LETTERS[letter.lower()], letter.islower())


def untyped(points: list[float]) -> Typed:
    """Return a shape without a type: four numbers are a rectangle, more are a polygon."""
    return Typed(type="rectangle" if len(points) == 4 else "polygon", points=points)


def drawn_of(shape: Typed, size: Size) -> dict[str, Any]:
    """Convert a shape to members of a VideoPrompt. This blocks."""
    points = shape.points
    if shape.type == "mask":
        return _filled(mask_of_points(points, size), shape.type)
    if not np.isfinite(points).all():
        raise Problem(422, f"a {shape.type} must have finite numbers")
    if shape.type == "rectangle":
        box = Target(box=points).inside(size)["box"]
        if box[0] >= box[2] or box[1] >= box[3]:
            raise Problem(422, "a rectangle must overlap the image")
        return {"box": box}
    pairs = np.reshape(points, (-1, 2)).tolist() if points and len(points) % 2 == 0 else []
    if shape.type == "points" and pairs:
        return {"points": Target(points=pairs, labels=[1] * len(pairs)).inside(size)["points"]}
    if shape.type == "polygon" and len(pairs) >= 3:
        inside = Target(points=pairs, labels=[1] * len(pairs)).inside(size)["points"]
        return _filled(filled_polygon(np.array(inside), size), shape.type)
    raise Problem(422, f"{len(points)} numbers do not make a {shape.type}")


def shape_of(record: MaskRecord, state: State) -> Any:
    """Return a mask as a shape of the expected kind; None if the object is not in the frame."""
    if record.box is None:
        return None
    mask = record.mask
    if state.kind == "mask":
        points: list[float] = box_runs(mask)
    elif state.kind == "polygon":
        points = np.round(mask_to_polygons(mask)[0], 2).tolist()
    elif state.kind == "points":
        x1, y1, x2, y2 = record.box
        points = [(x1 + x2) / 2, (y1 + y2) / 2]
    else:
        points = [float(value) for value in record.box]
    return {"type": state.kind, "points": points} if state.is_typed else points


def _filled(mask: BoolArray, kind: str) -> dict[str, Any]:
    if not mask.any():
        raise Problem(422, f"the {kind} covers no pixel of the image")
    return {"mask_rle": mask_to_rle(mask)}


def box_runs(mask: BoolArray) -> list[float]:
    """Return the run lengths of a mask within its box, row by row, followed by the box x1, y1, x2, y2.

    The first run is background. The corners are pixels inside the box. Reference: encode_mask() of CVAT's SDK.
    """
    box = mask_to_box(mask)
    if box is None:
        return []
    x1, y1, x2, y2 = box
    flat = mask[y1:y2, x1:x2].ravel()
    edges = np.concatenate(([0], np.flatnonzero(flat[1:] != flat[:-1]) + 1, [flat.size]))
    runs = np.diff(edges).tolist()
    return [*([0] if flat[0] else []), *runs, x1, y1, x2 - 1, y2 - 1]


def mask_of_points(points: list[float], size: Size) -> BoolArray:
    """Return the mask (H,W) of a mask in CVAT: its runs or its pixels, followed by the corners of its box."""
    width, height = size
    values = np.asarray(points, np.float64)
    if len(values) < 5 or not np.isfinite(values).all() or (values < 0).any() or (values > width * height).any():
        raise Problem(422, "a mask must have the lengths of its runs, then x1, y1, x2, y2 of its box")
    *_, x1, y1, x2, y2 = values.astype(np.int64).tolist()
    runs = values[:-4].astype(np.int64)
    if x1 > x2 or y1 > y2 or x2 >= width or y2 >= height:
        raise Problem(422, "the box of a mask must lie within the image")
    shape = y2 - y1 + 1, x2 - x1 + 1
    pixels = shape[0] * shape[1]
    is_bits = len(runs) == pixels and runs.max() <= 1
    if not is_bits and runs.sum() != pixels:
        raise Problem(422, f"the runs of a mask must add up to the {pixels} pixels of its box")
    flat = runs.astype(bool) if is_bits else np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    mask = np.zeros((height, width), bool)
    mask[y1 : y2 + 1, x1 : x2 + 1] = flat.reshape(shape)
    return mask
