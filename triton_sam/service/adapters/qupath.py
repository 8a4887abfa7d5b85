"""QuPath, through samapi's protocol. Reference: src/samapi/main.py of https://github.com/ksugar/samapi."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from ...annotate.prompts import mask_logits
from ...concepts.query import MAX_EXAMPLES
from ...errors import ImageError
from ...families.base import FloatArray
from ...inputs.images import open_image
from ...masks.polygons import main_polygons, to_geometry
from ...masks.segment import Segment
from ..answers import to_json
from ..engine import Pair
from ..problems import Problem
from ..store import check_image
from ..videos.schemas import segment_of
from .adapter import Adapter, basic_password
from .bridge import Bridge, Lenient, Target, decoded, json_list
from .qupath_video import Sam2VideoBody, Sam3VideoBody, Sequences

CONTRACT = "0.7.1"
"""The version of samapi whose protocol is implemented. QuPath's extension shows it."""
TYPES = {
    "vit_h": ("sam1", "vit_h"),
    "vit_l": ("sam1", "vit_l"),
    "vit_b": ("sam1", "vit_b"),
    "vit_t": ("mobilesam", "vit_t"),
    "sam2_l": ("sam2", "large"),
    "sam2_bp": ("sam2", "base_plus"),
    "sam2_s": ("sam2", "small"),
    "sam2_t": ("sam2", "tiny"),
    "sam3": ("sam3", ""),
}
"""The family and size of each type of samapi."""
MULTI = "Multi"
"""Prefix of output kinds that request several masks for a point."""


class SamBody(Lenient):
    type: str = Field(default="vit_h", max_length=32)
    b64img: str
    bbox: list[float] | None = None
    point_coords: list[list[float]] | None = None
    point_labels: list[int] | None = None
    b64mask: str | None = None
    multimask_output: bool = False


class Sam3Body(Lenient):
    """Words and examples; boxes are x, y, width and height."""

    type: str = Field(default="sam3", max_length=32)
    b64img: str
    text_prompt: str | None = None
    positive_bboxes: list[list[float]] | None = Field(default=None, max_length=MAX_EXAMPLES)
    negative_bboxes: list[list[float]] | None = Field(default=None, max_length=MAX_EXAMPLES)
    confidence_threshold: float = 0.5

    def filters(self) -> dict[str, Any]:
        """Return the members of a FindRequest except for the text."""
        shown, hidden = self.positive_bboxes or [], self.negative_bboxes or []
        if not self.text_prompt and not shown and not hidden:
            raise Problem(422, "send a text_prompt, positive_bboxes, or both")
        if any(len(box) != 4 for box in (*shown, *hidden)):
            raise Problem(422, "a box is x, y, width, height")
        boxes = [[x, y, x + width, y + height] for x, y, width, height in (*shown, *hidden)]
        labels = [1] * len(shown) + [0] * len(hidden)
        return {"threshold": self.confidence_threshold, **({"boxes": boxes, "box_labels": labels} if boxes else {})}


class AutoMaskBody(Lenient):
    """Parameters of Meta's automatic mask generators."""

    type: str = Field(default="vit_h", max_length=32)
    b64img: str
    points_per_side: int | None = 32
    points_per_batch: int = 64
    pred_iou_thresh: float = 0.88
    stability_score_thresh: float = 0.95
    stability_score_offset: float = 1.0
    box_nms_thresh: float = 0.7
    crop_n_layers: int = 0
    crop_nms_thresh: float = 0.7
    crop_overlap_ratio: float = 512 / 1500
    crop_n_points_downscale_factor: int = 1
    min_mask_region_area: int = 0
    output_type: str = Field(default="Single Mask", max_length=64)

    def options(self) -> dict[str, Any]:
        others = {"type", "b64img", "output_type"}
        return {**self.model_dump(exclude=others), "multimask_output": MULTI in self.output_type}


def router(bridge: Bridge) -> APIRouter:
    api = APIRouter(prefix="/sam")

    @api.post("/")
    async def predict(request: Request) -> Response:
        body = await bridge.read(request, SamBody)
        pair = await _pair(bridge, body.type)
        image = await bridge.image(body.b64img, "b64img")
        points = body.point_coords or []
        mask = None if body.b64mask is None else await _refining(bridge, body.b64mask, pair)
        target = Target(points, body.point_labels or [1] * len(points), body.bbox or None, mask)
        found = await bridge.masks(
            *(request, image, pair, [target]),
            lambda segment: feature(segment, segment.candidate, pair.name),
            multimask=body.multimask_output,
        )
        return json_list(each for candidates in found for each in candidates)

    @api.post("/automask/")
    async def automask(request: Request) -> Response:
        body = await bridge.read(request, AutoMaskBody)
        pair = await _pair(bridge, body.type)
        image = await bridge.image(body.b64img, "b64img")
        found = await bridge.everything(
            *(request, image, pair, body.options()), lambda segment: feature(segment, segment.object_index, pair.name)
        )
        return json_list(found)

    @api.post("/sam3/")
    async def sam3(request: Request) -> Response:
        """Return a GeoJSON feature for each instance of words and examples. Requests are independent."""
        body = await bridge.read(request, Sam3Body)
        filters = body.filters()
        pair = await bridge.words_pair("sam3")
        image = await bridge.image(body.b64img, "b64img")
        texts = [body.text_prompt] if body.text_prompt else []
        numbers = itertools.count()
        found = await bridge.instances(
            *(request, image, pair, texts),
            lambda each: feature(each, next(numbers), pair.name),
            names={"text": "text_prompt", "threshold": "confidence_threshold"},
            **filters,
        )
        return json_list(found)

    @api.get("/version/", response_class=PlainTextResponse)
    async def version() -> str:
        return CONTRACT

    @api.get("/weights/")
    async def weights(type: str | None = None) -> list[dict[str, str]]:  # noqa: A002 - the tool's own name
        """List the types that Triton serves; the service does not download others."""
        await bridge.pair(None)
        families = {pair.family.name for pair in bridge.pairs.values()}
        served = [name for name, (family, _) in TYPES.items() if family in families]
        return [{"type": name, "name": "default", "url": f"triton:{name}"} for name in served if type in (None, name)]

    @api.post("/weights/")
    async def register(_: Request) -> Response:
        raise Problem(403, "this service does not download weights: its operator adds models with `triton-sam setup`")

    @api.get("/weights/cancel/", response_class=PlainTextResponse)
    async def cancel() -> str:
        return "there is no download"

    @api.get("/progress/")
    async def progress() -> dict[str, Any]:
        return {"message": None, "percent": -1}

    _add_videos(api, bridge, Sequences(bridge))
    return api


def _add_videos(api: APIRouter, bridge: Bridge, sequences: Sequences) -> None:
    @api.post("/upload/")
    async def upload(request: Request) -> dict[str, str]:
        """Store a frame of a stack or time series until `video/` or `sam3video/` names its folder."""
        return {"filename": await sequences.receive(request)}

    @api.post("/video/")
    async def video(request: Request) -> Response:
        """Return a GeoJSON feature for each object in each frame. The frames are deleted afterwards."""
        body = await bridge.read(request, Sam2VideoBody)
        if not body.type.startswith("sam2"):
            raise Problem(404, "objects are tracked by SAM2: choose a type that begins with sam2")
        pair = await bridge.videos.pair((await _pair(bridge, body.type)).name)
        found = await sequences.clicked(
            *(request, pair, body),
            lambda record, number: feature(segment_of(record), number, pair.name, body.plane(record.frame)),
        )
        return json_list(found)

    @api.post("/sam3video/")
    async def sam3video(request: Request) -> Response:
        body = await bridge.read(request, Sam3VideoBody)
        words, pair = await bridge.words_pair(), await bridge.videos.pair(None)
        found = await sequences.named(
            *(request, pair, body),
            lambda record, number: feature(segment_of(record), number, words.name, body.plane(record.frame)),
        )
        return json_list(found)


def feature(segment: Segment, number: int, model: str, plane: dict[str, int] | None = None) -> bytes | None:
    """Return a mask without specks as JSON, a polygon or multi-polygon feature; None if the mask is empty."""
    polygons = main_polygons(segment.mask)
    if not polygons:
        return None
    geometry = to_geometry(polygons)
    if len(polygons) == 1:
        geometry = {"type": "Polygon", "coordinates": geometry["coordinates"][0]}
    if plane is not None:
        geometry = {**geometry, "plane": plane}
    properties = {"object_idx": number, "label": "object", "quality": segment.score, "sam_model": model}
    return to_json({"type": "Feature", "geometry": geometry, "properties": properties})


async def _refining(bridge: Bridge, text: str, pair: Pair) -> FloatArray:
    """Return the mask in a base64 string as logits of the decoder's input size, float32 (S,S)."""
    content = await asyncio.to_thread(decoded, text, "b64mask")
    size = await asyncio.to_thread(check_image, content, bridge.engine.settings.max_megapixels)

    def read(content: bytes) -> FloatArray:
        return mask_logits(np.asarray(open_image(content)).any(axis=2), pair.family)

    try:
        [logits] = await bridge.in_thread(size, [content], read)
    except ImageError as error:
        raise Problem(422, f"b64mask: {error}") from None
    return logits


async def _pair(bridge: Bridge, kind: str) -> Pair:
    if kind not in TYPES:
        raise Problem(404, f"there is no type {kind!r} here: choose one of {', '.join(TYPES)}", code="unknown_model")
    return await bridge.pair(*TYPES[kind])


ADAPTER = Adapter(
    name="qupath",
    paths=("/sam",),
    router=router,
    error=lambda problem: {"detail": problem.detail},
    token=basic_password,
    open_paths=("/sam/version/",),
)
