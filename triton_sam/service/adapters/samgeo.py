"""samgeo-api: `POST /segment/automatic`, `/segment/predict` and `/segment/text`, each with an image in a form.

Reference: samgeo/api.py of https://github.com/opengeos/segment-geospatial.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from starlette.datastructures import UploadFile

from ...errors import InputError
from ...masks.segment import Segment
from ...tiles.geotiff import GeoTags, read_tags
from ...tiles.projections import WGS84, from_degrees
from ..adapter import Adapter
from ..bodies import FILES, kind_of
from ..engine import Pair
from ..faults import first_fault
from ..problems import Problem
from ..store import StoredImage
from .bridge import Bridge, Lenient, Target
from .geo_answers import Found, answer_of
from .geo_images import plain_image

VERSIONS = {"sam": "sam1", "sam1": "sam1", "sam2": "sam2", "sam3": "sam3"}
MODELS = {
    "sam": {"vit_h": "vit_h", "vit_l": "vit_l", "vit_b": "vit_b"},
    "sam2": {f"sam2-hiera-{size}": size.replace("-", "_") for size in ("tiny", "small", "base-plus", "large")},
    "sam3": {"facebook/sam3": ""},
}
"""The ids of models that samgeo knows for each of its versions, and the sizes in our words."""
FIELDS = 32
"""The most fields of a form."""
FORM = {
    "requestBody": {
        "required": True,
        "content": {FILES: {"schema": {"type": "object", "required": ["file"]}}},
    }
}
Form = TypeVar("Form", bound="SamgeoForm")


def _list_of(text: Any) -> Any:
    """Return the value in a text of JSON."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("this is no JSON") from None


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError("send a number from 0 to 1")
    return value


Share = Annotated[float, AfterValidator(_share)]
Numbers = list[float]


class SamgeoForm(Lenient):
    """The fields that all calls have. Empty fields count as missing: the tool's own page sends them."""

    model_version: Literal["sam", "sam1", "sam2", "sam3"] | None = None
    model_id: str | None = Field(default=None, max_length=128)
    output_format: Literal["geojson", "geotiff", "png", "json", "detections"] = "geojson"
    min_size: int = 0
    max_size: int | None = None
    unique: bool = True

    def keeps(self, segment: Segment) -> bool:
        """Whether the area of an object, in pixels, lies within the bounds. A mask without a pixel is no object."""
        largest = self.max_size if self.max_size is not None and self.max_size > 0 else math.inf
        return max(1, self.min_size) <= segment.area <= largest


class AutomaticForm(SamgeoForm):
    """Fields of a search for everything, with samgeo's defaults."""

    points_per_side: int = 32
    pred_iou_thresh: Share = 0.8
    stability_score_thresh: Share = 0.95


class PredictForm(SamgeoForm):
    """Points of one object, or boxes, one for each object."""

    point_coords: Annotated[list[Numbers], BeforeValidator(_list_of)] | None = None
    point_labels: Annotated[list[int] | int, BeforeValidator(_list_of)] | None = None
    boxes: Annotated[list[Numbers] | Numbers, BeforeValidator(_list_of)] | None = None
    point_crs: str | None = Field(default=None, max_length=64)
    multimask_output: bool = False


class TextForm(SamgeoForm):
    """Words to find."""

    prompt: str = Field(max_length=10_000)
    confidence_threshold: Share = 0.5


@dataclass(frozen=True)
class Call:
    """One call: its image, and the tags of the map."""

    image: StoredImage
    tags: GeoTags | None


class _Tool:
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def automatic(self, request: Request) -> Response:
        form, call = await self._read(request, AutomaticForm)
        pair = await self._pair(form)
        options = form.model_dump(include={"points_per_side", "pred_iou_thresh", "stability_score_thresh"})
        found = await self._bridge.everything(request, call.image, pair, options, lambda each: each)
        return await self._answer(form, call, sorted(found, key=lambda each: -each.area))

    async def predict(self, request: Request) -> Response:
        form, call = await self._read(request, PredictForm)
        points, boxes = _placed(form, call.tags)
        pair = await self._pair(form)
        if boxes and not points and pair.finds_concepts:  # as samgeo: with SAM3, boxes are examples
            labels = [1] * len(boxes)
            found: list[Segment] = list(
                await self._bridge.instances(
                    request, call.image, pair, (), lambda each: each, boxes=_clipped(boxes, call), box_labels=labels
                )
            )
            return await self._answer(form, call, found)
        targets = _targets(points, form.point_labels, boxes)
        masks = await self._bridge.masks(
            request, call.image, pair, targets, lambda each: each, multimask=form.multimask_output
        )
        best = [max(candidates, key=lambda each: each.score) for candidates in masks if candidates]
        return await self._answer(form, call, best)

    async def text(self, request: Request) -> Response:
        form, call = await self._read(request, TextForm)
        pair = await self._bridge.words_pair()
        found = await self._bridge.instances(
            *(request, call.image, pair, [form.prompt], lambda each: each),
            names={"text": "prompt", "threshold": "confidence_threshold"},
            threshold=form.confidence_threshold,
        )
        return await self._answer(form, call, list(found))

    async def _read(self, request: Request, kind: type[Form]) -> tuple[Form, Call]:
        if kind_of(request.headers) != FILES:
            raise Problem(415, f"send a form as {FILES}, with the image as `file`")
        async with request.form(max_files=1, max_fields=FIELDS) as sent:
            file = sent.get("file")
            if not isinstance(file, UploadFile):
                raise Problem(422, "file: the image is missing")
            content = await file.read()
            fields = {name: value for name, value in sent.items() if name != "file" and value != ""}
        try:
            form = kind.model_validate(fields)
        except ValidationError as error:
            raise Problem(422, first_fault(error)) from None
        tags = await asyncio.to_thread(read_tags, content)
        plain = await asyncio.to_thread(plain_image, content, self._bridge.engine.settings.max_megapixels)
        return form, Call(await self._bridge.engine.store(plain), tags)

    async def _pair(self, form: SamgeoForm) -> Pair:
        """Return the model that a form names. Without a version it is SAM3, samgeo's default, if that is served."""
        version = form.model_version
        if version is None:
            await self._bridge.pair(None)
            served = {pair.family.name for pair in self._bridge.pairs.values()}
            return await self._bridge.pair("sam3" if "sam3" in served else None)
        sizes = MODELS["sam" if version == "sam1" else version]
        if form.model_id is not None and form.model_id not in sizes:
            raise Problem(400, f"model_id: choose one of {', '.join(sizes)}")
        return await self._bridge.pair(VERSIONS[version], sizes.get(form.model_id or "", ""))

    async def _answer(self, form: SamgeoForm, call: Call, segments: list[Segment]) -> Response:
        kept = [each for each in segments if form.keeps(each)]
        if not kept:
            raise Problem(404, "No objects found: try another prompt, or other thresholds.", code="no_objects")
        width, height = call.image.size
        found = Found(kept, call.image.size, call.tags, form.unique)

        async def fetch() -> list[Found]:
            return [found]

        return await self._bridge.engine.budgets.workers.run(
            3 * width * height, fetch, lambda items: answer_of(next(iter(items)), form.output_format)
        )


def router(bridge: Bridge) -> APIRouter:
    """Return the routes."""
    api = APIRouter(tags=["samgeo"])
    tool = _Tool(bridge)

    @api.post("/segment/automatic", summary="Find everything for samgeo", openapi_extra=FORM)
    async def automatic(request: Request) -> Response:
        """Return all objects of an image."""
        return await tool.automatic(request)

    @api.post("/segment/predict", summary="Segment for samgeo", openapi_extra=FORM)
    async def predict(request: Request) -> Response:
        """Return the object under points, or those in boxes."""
        return await tool.predict(request)

    @api.post("/segment/text", summary="Find words for samgeo", openapi_extra=FORM)
    async def text(request: Request) -> Response:
        """Return all instances of words."""
        return await tool.text(request)

    return api


def _placed(form: PredictForm, tags: GeoTags | None) -> tuple[list[Numbers], list[Numbers]]:
    """Return points and boxes in pixels.

    Raises:
        Problem: 400, there are none; 422, they are not made of numbers, or their reference system cannot be used.
    """
    points = form.point_coords or []
    boxes: list[Any] = form.boxes or []
    if boxes and not isinstance(boxes[0], list):
        boxes = [boxes]
    if not points and not boxes:
        raise Problem(400, "At least one of point_coords or boxes must be provided.")
    for name, each, count in (("point_coords", points, 2), ("boxes", boxes, 4)):
        if any(len(one) != count or not all(math.isfinite(value) for value in one) for one in each):
            raise Problem(422, f"{name}: each has {count} finite numbers")
    if form.point_crs is None:
        return points, boxes
    return _pixels(points, form.point_crs, tags), [_pixel_box(box, form.point_crs, tags) for box in boxes]


def _pixel_box(box: Numbers, crs: str, tags: GeoTags | None) -> Numbers:
    """Return the box around the four corners of a box on the map."""
    x1, y1, x2, y2 = box
    corners = np.array(_pixels([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], crs, tags))
    return [*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist()]


def _pixels(points: list[Numbers], crs: str, tags: GeoTags | None) -> list[Numbers]:
    if not points:
        return []
    kind, _, number = crs.strip().upper().rpartition(":")
    if kind not in ("EPSG", "URN:OGC:DEF:CRS:EPSG", "") or not number.isascii() or not number.isdigit():
        raise Problem(422, f"point_crs: write it as EPSG:{WGS84}")
    if tags is None or tags.georeference.epsg is None:
        raise Problem(422, "point_crs: the image is no GeoTIFF that names a reference system: send pixels without it")
    given, own = int(number[:9]), tags.georeference.epsg
    if given not in (own, WGS84):
        raise Problem(422, f"point_crs: send coordinates in EPSG:{own}, that of the image, or in EPSG:{WGS84}")
    try:
        coordinates = np.asarray(points, np.float64)
        on_map = coordinates if given == own else from_degrees(coordinates, own)
    except InputError as error:
        raise Problem(422, f"point_crs: {error}") from None
    pixels: list[Numbers] = tags.georeference.to_pixels(on_map).tolist()
    return pixels


def _targets(points: list[Numbers], labels: list[int] | int | None, boxes: list[Numbers]) -> list[Target]:
    if points and len(boxes) > 1:
        raise Problem(422, "point_coords belong to one object: send one box with them, or the boxes in another call")
    given = [labels] if isinstance(labels, int) else labels
    if given is None or (len(given) == 1 and len(points) > 1):
        given = (given or [1]) * len(points)
    if points:
        return [Target(points, given, boxes[0] if boxes else None)]
    return [Target(box=box) for box in boxes]


def _clipped(boxes: list[Numbers], call: Call) -> list[Numbers]:
    inside = [Target(box=box).inside(call.image.size)["box"] for box in boxes]
    return [list(box) for box in inside]


ADAPTER = Adapter(
    name="samgeo",
    tool="samgeo",
    address="",
    paths=("/segment",),
    router=router,
    error=lambda problem: {"detail": problem.detail},
)
