"""X-AnyLabeling's remote server. Reference: app/api and app/schemas of X-AnyLabeling-Server, used as a contract."""

from __future__ import annotations

import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.datastructures import Headers

from ...concepts.query import THRESHOLD
from ..engine import Pair
from ..problems import Problem
from .adapter import Adapter
from .bridge import Bridge, Lenient, Target, json_answer
from .x_anylabeling_video import FINENESS, SUFFIX, Drawing, add_routes, pair_name, shapes_of, words_of

BUTTONS = ("button_add_point", "button_remove_point", "button_add_rect", "button_clear", "button_finish_object")
WIDGETS: tuple[tuple[str, float | None], ...] = (
    *((name, None) for name in BUTTONS),
    ("mask_fineness_slider", round(FINENESS * 10_000)),
    ("mask_fineness_value_label", None),
)
"""Widgets of X-AnyLabeling's window for a model with clicks."""


WORD_WIDGETS: tuple[tuple[str, float | None], ...] = (
    ("edit_text", None),
    ("button_send", None),
    ("input_conf", None),
    ("edit_conf", THRESHOLD),
)
"""Additional widgets for a model that finds words."""
WORD_NAMES = {
    "text": "params.text_prompt",
    "threshold": "params.conf_threshold",
    "nms": "params.iou_threshold",
}
"""The tool's names for the parameters of a search for words."""


class Mark(Lenient):
    type: str = Field(max_length=32)
    data: list[float]
    label: int = 1


class Parameters(Drawing):
    marks: list[Mark] = Field(default_factory=list)
    text_prompt: str | None = None
    conf_threshold: float | None = None
    iou_threshold: float | None = None
    multimask_output: bool = False


class PredictRequest(Lenient):
    model: str = Field(max_length=128)
    image: str
    params: Parameters = Field(default_factory=Parameters)


def router(bridge: Bridge) -> APIRouter:
    api = APIRouter(prefix="/x-anylabeling")

    @api.get("/health")
    async def health() -> dict[str, Any]:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
        count = len(bridge.pairs)
        return {"status": "healthy" if count else "unhealthy", "models_loaded": count, "timestamp": now}

    def has_words() -> bool:
        return any(pair.finds_concepts for pair in bridge.pairs.values())

    @api.get("/v1/models")
    async def models() -> dict[str, Any]:
        await bridge.pair(None)
        images = {name: described(pair) for name, pair in bridge.pairs.items()}
        videos = {
            f"{name}{SUFFIX}": described_video(pair, has_words())
            for name, pair in bridge.pairs.items()
            if pair.tracks_videos
        }
        return {"success": True, "data": {**images, **videos}}

    @api.get("/v1/models/{model_id}/info")
    async def model_info(model_id: str) -> dict[str, Any]:
        if model_id not in bridge.pairs and model_id.endswith(SUFFIX):
            pair = await bridge.videos.pair(pair_name(model_id))
            return {"success": True, "data": {"model_id": model_id, **described_video(pair, has_words())}}
        pair = await bridge.pair(model_id)
        return {"success": True, "data": {"model_id": pair.name, **described(pair)}}

    @api.post("/v1/predict")
    async def predict(request: Request) -> Response:
        """Return the best mask of each object as polygons."""
        body = await bridge.read(request, PredictRequest)
        pair = await bridge.pair(body.model if body.model in bridge.pairs else pair_name(body.model))
        parameters = body.params
        targets = targets_of(parameters.marks)
        shapes: list[dict[str, Any]] = []
        if parameters.text_prompt and not targets:
            shapes = await _instances(bridge, request, pair, body)
        elif targets:
            image = await bridge.image(body.image, upright=False)
            found = await bridge.masks(
                *(request, image, pair, targets),
                lambda segment: (segment.score, shapes_of(segment, parameters)),
                multimask=parameters.multimask_output,
            )
            best = [max(candidates, key=lambda each: each[0]) for candidates in found]
            shapes = [shape for _, of_object in best for shape in of_object]
        return json_answer({"success": True, "data": {"shapes": shapes, "description": "", "replace": False}})

    add_routes(api, bridge)
    return api


async def _instances(bridge: Bridge, request: Request, pair: Pair, body: PredictRequest) -> list[dict[str, Any]]:
    parameters = body.params
    image = await bridge.image(body.image, upright=False)
    found = await bridge.instances(
        *(request, image, pair, words_of(parameters.text_prompt or "")),
        lambda segment: shapes_of(segment, parameters, segment.label),
        names=WORD_NAMES,
        threshold=parameters.conf_threshold,
        nms=parameters.iou_threshold,
    )
    return [shape for of_instance in found for shape in of_instance]


def targets_of(marks: list[Mark]) -> list[Target]:
    """Return the objects of marks: each rectangle is one, with all points; without rectangles, the points are one."""
    points = [mark.data for mark in marks if mark.type == "point"]
    labels = [mark.label for mark in marks if mark.type == "point"]
    boxes = [mark.data for mark in marks if mark.type == "rectangle"]
    if boxes:
        return [Target(points, labels, box) for box in boxes]
    return [Target(points, labels)] if points else []


def described(pair: Pair) -> dict[str, Any]:
    """Return the description of a model from which X-AnyLabeling builds its window."""
    widgets = (*WORD_WIDGETS, *WIDGETS) if pair.finds_concepts else WIDGETS
    return {
        "display_name": pair.name,  # the list has room for eight characters, and cuts the middle out of longer names
        "widgets": [{"name": name, "value": value} for name, value in widgets],
        "params": {"epsilon_factor": FINENESS, "show_boxes": False, "show_masks": True, "multimask_output": False},
        "capabilities": {},
        # Without clicks there is nothing to segment, but words can be searched in many images.
        "batch_processing_mode": "text_prompt" if pair.finds_concepts else None,
    }


def described_video(pair: Pair, has_words: bool) -> dict[str, Any]:
    """Return the description of a model that follows objects through the images of a folder.

    It has no rectangle widget, because X-AnyLabeling only sends points and words.
    """
    clicks = [each for each in WIDGETS if each[0] != "button_add_rect"]
    widgets = [*(WORD_WIDGETS if has_words else ()), *clicks, ("toggle_preserve_existing_annotations", False)]
    return {
        **described(pair),
        "display_name": f"{pair.name} vid",
        "widgets": [{"name": name, "value": value} for name, value in widgets],
        "batch_processing_mode": "video",
    }


def error(problem: Problem) -> dict[str, Any]:
    """Return a problem in the tool's form.

    The original server returns status 200 for most errors, and the window then shows nothing. With another status,
    X-AnyLabeling logs the error.
    """
    return {
        "success": False,
        "error": {"code": (problem.code or str(problem.status)).upper(), "message": problem.detail},
    }


ADAPTER = Adapter(
    name="x-anylabeling",
    paths=("/x-anylabeling",),
    router=router,
    error=error,
    token=lambda scope: Headers(scope=scope).get("Token", "").strip(),
    sign_in="enter a token of this service as the API key of the remote server",
    open_paths=("/x-anylabeling/health",),
)
