"""X-AnyLabeling's remote server. Reference: app/api and app/schemas of X-AnyLabeling-Server, read as a contract."""

from __future__ import annotations

import datetime
import math
import re
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field

from ...concepts.query import THRESHOLD
from ...masks.polygons import mask_to_polygons
from ...masks.segment import Segment
from ..adapter import Adapter, header_token
from ..engine import Pair
from ..problems import Problem
from .bridge import Bridge, Lenient, Target, json_answer

LABEL = "AUTOLABEL_OBJECT"
"""X-AnyLabeling asks its user for the label of shapes with this one."""
FINENESS = 0.001
"""The share of its length by which an outline may be simplified, unless the slider says another one."""
LEAST_TOLERANCE = 0.5
BUTTONS = ("button_add_point", "button_remove_point", "button_add_rect", "button_clear", "button_finish_object")
WIDGETS: tuple[tuple[str, float | None], ...] = (
    *((name, None) for name in BUTTONS),
    ("mask_fineness_slider", round(FINENESS * 10_000)),
    ("mask_fineness_value_label", None),
)
"""The parts of X-AnyLabeling's window that a model with clicks needs."""


WORD_WIDGETS: tuple[tuple[str, float | None], ...] = (
    ("edit_text", None),
    ("button_send", None),
    ("input_conf", None),
    ("edit_conf", THRESHOLD),
)
"""The further parts for a model that finds words."""


class Mark(Lenient):
    """A point or a box of the user."""

    type: str = Field(max_length=32)
    data: list[float]
    label: int = 1


class Parameters(Lenient):
    """The prompt."""

    marks: list[Mark] = Field(default_factory=list)
    text_prompt: str | None = None
    conf_threshold: float | None = None
    iou_threshold: float | None = None
    epsilon_factor: float = FINENESS
    show_boxes: bool = False
    show_masks: bool = True
    multimask_output: bool = False


class PredictRequest(Lenient):
    """A request."""

    model: str = Field(max_length=128)
    image: str
    params: Parameters = Field(default_factory=Parameters)


def router(bridge: Bridge) -> APIRouter:
    """Return the routes."""
    api = APIRouter(prefix="/x-anylabeling", tags=["X-AnyLabeling"])

    @api.get("/health", summary="Health for X-AnyLabeling")
    async def health() -> dict[str, Any]:
        """Say whether models are ready."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
        count = len(bridge.pairs)
        return {"status": "healthy" if count else "unhealthy", "models_loaded": count, "timestamp": now}

    @api.get("/v1/models", summary="Models for X-AnyLabeling")
    async def models() -> dict[str, Any]:
        """List the models."""
        await bridge.pair(None)
        return {"success": True, "data": {name: described(pair) for name, pair in bridge.pairs.items()}}

    @api.get("/v1/models/{model_id}/info", summary="A model for X-AnyLabeling")
    async def model_info(model_id: str) -> dict[str, Any]:
        """Describe a model."""
        pair = await bridge.pair(model_id)
        return {"success": True, "data": {"model_id": pair.name, **described(pair)}}

    @api.post("/v1/predict", summary="Segment for X-AnyLabeling")
    async def predict(request: Request) -> Response:
        """Return the best mask of each object as polygons."""
        body = await bridge.read(request, PredictRequest)
        pair = await bridge.pair(body.model)
        parameters = body.params
        if not math.isfinite(parameters.epsilon_factor) or not 0 <= parameters.epsilon_factor <= 1:
            raise Problem(422, "epsilon_factor must lie between 0 and 1")
        targets = targets_of(parameters.marks)
        shapes: list[dict[str, Any]] = []
        if parameters.text_prompt and not targets:
            shapes = await _instances(bridge, request, pair, body)
        elif targets:
            image = await bridge.image(body.image)
            found = await bridge.masks(
                *(request, image, pair, targets),
                lambda segment: (segment.score, shapes_of(segment, parameters)),
                multimask=parameters.multimask_output,
            )
            best = [max(candidates, key=lambda each: each[0]) for candidates in found]
            shapes = [shape for _, of_object in best for shape in of_object]
        return json_answer({"success": True, "data": {"shapes": shapes, "description": "", "replace": False}})

    return api


async def _instances(bridge: Bridge, request: Request, pair: Pair, body: PredictRequest) -> list[dict[str, Any]]:
    """Return the shapes of all instances of the words in the window's text field."""
    parameters = body.params
    texts = [each.strip() for each in re.split(r"[,.\n]", parameters.text_prompt or "") if each.strip()]
    image = await bridge.image(body.image)
    found = await bridge.instances(
        *(request, image, pair, list(dict.fromkeys(texts))),
        lambda segment: shapes_of(segment, parameters, segment.label),
        threshold=parameters.conf_threshold,
        nms=parameters.iou_threshold,
    )
    return [shape for of_instance in found for shape in of_instance]


def targets_of(marks: list[Mark]) -> list[Target]:
    """Return the objects that marks mean: each rectangle is one, with all points; points alone are one together."""
    points = [mark.data for mark in marks if mark.type == "point"]
    labels = [mark.label for mark in marks if mark.type == "point"]
    boxes = [mark.data for mark in marks if mark.type == "rectangle"]
    if boxes:
        return [Target(points, labels, box) for box in boxes]
    return [Target(points, labels)] if points else []


def shapes_of(segment: Segment, parameters: Parameters, label: str = LABEL) -> list[dict[str, Any]]:
    """Return a mask as shapes: a closed polygon for each part, and a rectangle if the caller wants it."""
    score = min(1.0, max(0.0, segment.score))
    shapes = []
    if parameters.show_masks:
        for ring in _outlines(segment, parameters.epsilon_factor):
            points = np.reshape(ring, (-1, 2)).tolist()
            shapes.append({"label": label, "shape_type": "polygon", "points": [*points, points[0]], "score": score})
    if parameters.show_boxes and segment.box is not None:
        x1, y1, x2, y2 = map(float, segment.box)
        corners = [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
        shapes.append({"label": label, "shape_type": "rectangle", "points": corners, "score": score})
    return shapes


def described(pair: Pair) -> dict[str, Any]:
    """Return the description of a model that X-AnyLabeling builds its window from."""
    widgets = (*WORD_WIDGETS, *WIDGETS) if pair.finds_concepts else WIDGETS
    return {
        "display_name": f"triton_sam: {pair.name}",
        "widgets": [{"name": name, "value": value} for name, value in widgets],
        "params": {"epsilon_factor": FINENESS, "show_boxes": False, "show_masks": True, "multimask_output": False},
        "capabilities": {},
        # Without clicks there is nothing to segment, but words can be searched in many images.
        "batch_processing_mode": "text_prompt" if pair.finds_concepts else None,
    }


def _outlines(segment: Segment, fineness: float) -> list[list[float]]:
    """Return the rings of a mask, simplified by a share of the length of the longest."""
    rings = mask_to_polygons(segment.mask, LEAST_TOLERANCE)
    tolerance = fineness * max(map(_length, rings), default=0.0)
    return rings if tolerance <= LEAST_TOLERANCE else mask_to_polygons(segment.mask, tolerance)


def _length(ring: list[float]) -> float:
    points = np.reshape(ring, (-1, 2))
    return float(np.linalg.norm(points - np.roll(points, 1, axis=0), axis=1).sum())


def error(problem: Problem) -> dict[str, Any]:
    """Return a problem in the tool's form.

    Theirs has the status 200 for most errors, and the window then shows nothing at all. With ours, it names the error.
    """
    return {
        "success": False,
        "error": {"code": (problem.code or str(problem.status)).upper(), "message": problem.detail},
    }


ADAPTER = Adapter(
    name="x-anylabeling",
    tool="X-AnyLabeling",
    address="/x-anylabeling",
    paths=("/x-anylabeling",),
    router=router,
    error=error,
    tokens=(header_token("Token"),),
    sign_in="enter a token of this service as the API key of the remote server",
    open_paths=("/x-anylabeling/health",),
)
