"""Masks as X-AnyLabeling's shapes, and its video models.

All images of a folder are the frames of a video, and objects are clicked or named in one of them.

Reference: app/api/video.py of X-AnyLabeling-Server, used as a contract.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.responses import StreamingResponse

from ...masks.polygons import SMALLEST_AREA, Outlines
from ...masks.rings import FloatPoints
from ...masks.segment import Segment
from ...tracks.records import MaskRecord
from .. import events
from ..answers import to_json
from ..problems import Problem, meant_by
from ..videos.schemas import PropagateRequest, segment_of, video_prompt
from ..videos.store import StoredVideo
from .bridge import Bridge, Lenient, Target, json_answer

LABEL = "AUTOLABEL_OBJECT"
"""X-AnyLabeling asks the user for a label when shapes have this one."""
FINENESS = 0.001
"""Maximum deviation of a simplified outline as a fraction of its length, unless the slider sets another."""
LEAST_TOLERANCE = 0.5
SMALLEST_SHARE_OF_MEAN = 0.2
"""Fraction of the mean area of an object's parts; X-AnyLabeling drops smaller parts (post_process() of its models)."""
MOST_GROUPS = 1_000_000


class Drawing(Lenient):
    epsilon_factor: float = Field(default=FINENESS, ge=0, le=1, allow_inf_nan=False)
    show_boxes: bool = False
    show_masks: bool = True


def shapes_of(segment: Segment, drawing: Drawing, label: str = LABEL, group: int | None = None) -> list[dict[str, Any]]:
    """Return a mask as shapes: a closed polygon for each part, and a rectangle if the caller requests it.

    Args:
        group: the object number; None: the shapes of an object with several parts share a random number.
    """
    score = min(1.0, max(0.0, segment.score))
    outlines = _outlines(segment, drawing.epsilon_factor) if drawing.show_masks else []
    shapes: list[dict[str, Any]] = []
    for ring in outlines:
        points = ring.tolist()
        shapes.append({"shape_type": "polygon", "points": [*points, points[0]]})
    if drawing.show_boxes and segment.box is not None:
        x1, y1, x2, y2 = map(float, segment.box)
        shapes.append({"shape_type": "rectangle", "points": [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]})
    if group is None and len(shapes) > 1:
        group = secrets.randbelow(MOST_GROUPS) + 1  # other objects of the file have groups too
    grouped = {} if group is None else {"group_id": group}
    return [{"label": label, "score": score, **grouped, **shape} for shape in shapes]


def words_of(text: str) -> list[str]:
    """Return the words in the window's text field, without duplicates."""
    texts = (each.strip() for each in re.split(r"[,.\n]", text))
    return list(dict.fromkeys(each for each in texts if each))


def _outlines(segment: Segment, fineness: float) -> list[FloatPoints]:
    """Return a mask's outlines without specks, simplified by a fraction of the longest outline's length."""
    outlines = Outlines(segment.mask)
    polygons = outlines.all(LEAST_TOLERANCE)
    if not polygons:
        return []
    tolerance = max(LEAST_TOLERANCE, fineness * max(_length(each.exterior) for each in polygons))
    least = SMALLEST_SHARE_OF_MEAN * sum(each.area for each in polygons) / len(polygons)
    return [each.exterior for each in outlines.main(tolerance, 0.0, max(least, SMALLEST_AREA))]


def _length(ring: FloatPoints) -> float:
    return float(np.linalg.norm(ring - np.roll(ring, 1, axis=0), axis=1).sum())


SUFFIX = "-video"
"""Suffix of a video model's name, after the name of the pair."""
OBJECT = 99_999
"""Object number for clicks without an object id."""

Shapes = list[dict[str, Any]]


class InitRequest(Lenient):
    model: str = Field(max_length=128)
    frames: list[str]
    start_frame_index: int = Field(default=0, ge=0, lt=1 << 31)


class PromptParameters(Drawing):
    conf_threshold: float | None = None


class PromptRequest(Lenient):
    """Words, or the points of an object as fractions of width and height."""

    session_id: str = Field(max_length=128)
    model: str = Field(max_length=128)
    text_prompt: str | None = None
    frame_index: int = 0
    points: list[list[float]] | None = None
    point_labels: list[int] | None = None
    obj_id: int | None = Field(default=None, ge=0, lt=(1 << 31) - 1)
    params: PromptParameters = Field(default_factory=PromptParameters)


class PropagateFrames(Lenient):
    session_id: str = Field(max_length=128)
    model: str = Field(max_length=128)
    start_frame: int | None = None
    end_frame: int | None = None


@dataclass(eq=False)
class State:
    """The frames, objects and settings that X-AnyLabeling has sent for a video.

    Args:
        first: the index of the first frame in the tool.

    Attributes:
        finished: objects that have been followed. A new prompt for a finished object restarts it.
    """

    video: StoredVideo
    first: int
    drawing: Drawing = field(default_factory=Drawing)
    labels: dict[int, str] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)

    def place(self, frame: int) -> int:
        """Convert a frame index of the tool to one of the stored video."""
        count = self.video.file.num_frames
        if not self.first <= frame < self.first + count:
            raise Problem(422, f"there is no frame {frame}: the frames are {self.first} to {self.first + count - 1}")
        return frame - self.first

    def propagate_request(self, start: int | None, end: int | None) -> PropagateRequest:
        """Return the request for the frames from start to end; None: from the first prompt, and to the last frame."""
        first = None if start is None else self.place(start)
        if end is None:
            return PropagateRequest(start=first)
        if first is None:
            first = min((frame for each in self.video.tracking.prompted.values() for frame in each), default=0)
        last = self.place(end)
        if last < first:
            raise Problem(422, "end_frame is before start_frame, or before the first prompt")
        return PropagateRequest(start=first, count=last - first + 1)

    def shapes(self, record: MaskRecord, score: float | None = None) -> Shapes:
        """Return the shapes of an object in a frame; empty if the object is not visible."""
        number, segment = record.object_id, segment_of(record)
        shown = segment if score is None else replace(segment, score=score)
        return shapes_of(shown, self.drawing, self.labels.get(number, LABEL), number)


def add_routes(api: APIRouter, bridge: Bridge) -> None:
    @api.post("/v1/video/init")
    async def init(request: Request) -> Response:
        body = await bridge.read(request, InitRequest)
        return _success(await _begin(bridge, request, body))

    @api.post("/v1/video/prompt")
    async def prompt(request: Request) -> Response:
        """Return the shapes of the clicked object, or of all instances of words, in a frame."""
        body = await bridge.read(request, PromptRequest)
        state = _find(bridge, body.session_id)
        if body.text_prompt and body.text_prompt.strip():
            shapes = await _name(bridge, request, state, body)
        elif body.points:
            shapes = await bridge.run(request, _click(bridge, state, body))
        else:
            raise Problem(422, "send a text_prompt, or points")
        return _success({"frame_index": body.frame_index, "masks": shapes, "num_objects": len(shapes)})

    @api.post("/v1/video/propagate/stream", response_class=StreamingResponse)
    async def stream(request: Request) -> events.EventStream:
        """Follow all objects, and send the progress and the shapes as server-sent events."""
        body = await bridge.read(request, PropagateFrames)
        state = _find(bridge, body.session_id)
        return events.EventStream(_walk(bridge, state, state.propagate_request(body.start_frame, body.end_frame)))

    @api.post("/v1/video/cleanup/{session_id}")
    async def cleanup(session_id: str) -> Response:
        _find(bridge, session_id)
        await bridge.videos.sessions.remove(session_id)
        return _success({"message": f"Session {session_id} cleaned up"})


def _event(members: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(members)


def _success(data: dict[str, Any]) -> Response:
    return json_answer({"success": True, "data": data})


async def _begin(bridge: Bridge, request: Request, body: InitRequest) -> dict[str, Any]:
    pair = await bridge.videos.pair(pair_name(body.model))
    video = await bridge.run(request, bridge.keep_images(body.frames, pair, upright=False))
    video.tool = State(video, body.start_frame_index)
    count = video.file.num_frames
    return {"session_id": video.video_id, "num_frames": count, "start_frame_index": body.start_frame_index}


def _find(bridge: Bridge, name: str) -> State:
    """Return the state of a session, and count this as use."""
    video = bridge.videos.sessions.find(name, StoredVideo)
    if video is None or not isinstance(video.tool, State):
        raise Problem(404, "unknown or expired session: prompt the object again", code="session_not_found")
    return video.tool


async def _click(bridge: Bridge, state: State, body: PromptRequest) -> Shapes:
    frame, tracking = state.place(body.frame_index), state.video.tracking
    width, height = state.video.file.size
    points = [[x * width, y * height] for x, y in map(_pair_of, body.points or [])]
    placed = Target(points, body.point_labels or []).inside(state.video.file.size)
    number = (OBJECT if body.obj_id is None else body.obj_id) + 1
    prompt = video_prompt(frame=frame, object_id=number, **placed)
    if number in state.finished and number in tracking.prompted:
        await tracking.remove(number)
    state.finished.discard(number)
    state.labels.pop(number, None)
    state.drawing = body.params
    return _joined(await bridge.in_thread(state.video.file.size, [await tracking.add(prompt)], state.shapes))


async def _name(bridge: Bridge, request: Request, state: State, body: PromptRequest) -> Shapes:
    """Replace the objects by all instances of words in a frame, and return their shapes."""
    frame, tracking = state.place(body.frame_index), state.video.tracking
    texts, threshold = words_of(body.text_prompt or ""), body.params.conf_threshold
    names = {"text": "text_prompt", "threshold": "params.conf_threshold"}
    found = await bridge.find_in_frame(request, state.video, frame, texts, names=names, threshold=threshold)
    if tracking.prompted:
        await tracking.reset()
    state.finished.clear()
    state.drawing = body.params
    state.labels = {number: each.text for number, each in enumerate(found, 1)}
    scores = {number: each.score for number, each in enumerate(found, 1)}
    records = [
        await tracking.add(video_prompt(frame=frame, object_id=number, mask_rle=each.rle))
        for number, each in enumerate(found, 1)
    ]
    size = state.video.file.size
    drawn = await bridge.in_thread(size, records, lambda record: state.shapes(record, scores[record.object_id]))
    return _joined(drawn)


async def _walk(bridge: Bridge, state: State, way: PropagateRequest) -> AsyncGenerator[bytes, None]:
    """Follow the objects, and yield the tool's server-sent events. If the reader stops early, tracking stops."""
    total = state.video.file.num_frames
    yield _event({"type": "started", "total_frames": total, "start_frame_index": state.first})
    try:
        state.finished |= set(state.video.tracking.prompted)
        results: list[bytes] = []
        propagation = await state.video.tracking.propagate(way)
        async with contextlib.aclosing(propagation.frames()) as frames:
            async for each in frames:
                frame = each.frame + state.first
                drawn = await bridge.in_thread(state.video.file.size, each.records, state.shapes)
                results.append(b'"%d":%b' % (frame, to_json({"masks": _joined(drawn)})))
                share = len(results) / total
                yield _event({"type": "progress", "current_frame": frame, "total_frames": total, "progress": share})
        yield b'data: {"type":"completed","results":{%b}}\n\n' % b",".join(results)
    except Exception as error:  # noqa: BLE001 - the response with status 200 has already started
        yield _event({"type": "error", "message": meant_by(error).detail})


def pair_name(model: str) -> str:
    return model.removesuffix(SUFFIX)


def _joined(shapes: list[Shapes]) -> Shapes:
    return [shape for of_object in shapes for shape in of_object]


def _pair_of(point: list[float]) -> tuple[float, float]:
    if len(point) != 2:
        raise Problem(422, "a point is x, y in shares of the width and height")
    return point[0], point[1]
