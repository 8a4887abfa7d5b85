"""Label Studio's protocol of ML backends, for images.

Reference: label_studio_ml/api.py and examples/segment_anything_2_image of
https://github.com/HumanSignal/label-studio-ml-backend.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import AliasPath, Field

from ...concepts.query import MAX_TEXTS
from ...families.base import Size
from ...masks.polygons import mask_to_polygons
from ...masks.segment import Segment
from ...wire.contract import MAX_OBJECTS
from ..engine import Pair
from ..problems import Problem
from ..quotas import CALLER
from ..store import StoredImage
from .adapter import Adapter, basic_password
from .bridge import Bridge, Lenient, json_answer
from .brush_rle import encode_brush
from .task_images import TaskImages
from .task_regions import BRUSH, POLYGON, Region, RequestedObject, TaskMemory, asked_of, drawn_prompt, words_of

CONTROLS = {"BrushLabels": BRUSH, "PolygonLabels": POLYGON}
"""Tags of a labelling configuration that can hold a mask, preferred first, with the type of their results."""
MAX_CONFIG = 1 << 20


class Task(Lenient):
    id: int | str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class PredictRequest(Lenient):
    tasks: list[Task] = Field(default_factory=list)
    label_config: str = Field(default="", max_length=MAX_CONFIG)
    regions: list[Region] = Field(default_factory=list, validation_alias=AliasPath("params", "context", "result"))


@dataclass(frozen=True)
class Control:
    """The tag of a labelling configuration that holds the result."""

    name: str
    image: str
    kind: str
    key: str
    labels: tuple[str, ...] = ()

    def label(self, word: str) -> str | None:
        """Return the label for a word; None if the configuration has no label of that name."""
        return next((each for each in self.labels if each.casefold() == word.casefold()), None)


class _Tool:
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._memory = TaskMemory()
        settings = bridge.engine.settings
        self._images = TaskImages(
            bridge, settings.label_studio_url, settings.label_studio_token, settings.label_studio_private_storage
        )

    async def predict(self, request: Request, body: PredictRequest) -> Response:
        regions, words = body.regions, words_of(body.regions)
        if not body.tasks:
            return json_answer({"results": []})
        if words or not regions:
            return await self._find(request, body, words)
        control = control_of(body.label_config)
        pair = await self._bridge.pair(None)
        image = await self._bridge.run(request, self._image(body.tasks[0], control))
        regions = self._memory.joined((str(request.scope.get(CALLER)), image.image_id, body.tasks[0].id), regions)
        drawn = await self._bridge.run(request, self._drawn(regions, image.size, pair))
        targets, labels = asked_of(regions, image.size, drawn)
        found = await self._bridge.masks(
            *(request, image, pair, targets),
            lambda segment: result_of(segment, control, labels[segment.object_index]),
        )
        results = [each for candidates in found for each in candidates]
        return json_answer({"results": [prediction_of(results, pair)], "model_version": version_of(pair)})

    async def _find(self, request: Request, body: PredictRequest, words: list[str]) -> Response:
        """Return all instances of words in each task; without words, of the configuration's labels."""
        if not words and not any(pair.finds_concepts for pair in self._bridge.pairs.values()):
            return json_answer({"results": []})  # no words were requested, so this is not an error
        control = control_of(body.label_config)
        texts = words or control.labels
        if not texts:
            return json_answer({"results": []})
        if len(words) > MAX_TEXTS:
            raise Problem(422, f"{len(words)} words: a call takes {MAX_TEXTS}")
        parts = [texts[start : start + MAX_TEXTS] for start in range(0, len(texts), MAX_TEXTS)]
        pair = await self._bridge.words_pair()
        predictions = []
        for task in body.tasks:
            image = await self._bridge.run(request, self._image(task, control))
            results = []
            for part in parts:
                results += await self._bridge.instances(
                    *(request, image, pair, part), lambda each: result_of(each, control, control.label(each.label))
                )
            predictions.append(prediction_of(results, pair))
        return json_answer({"results": predictions, "model_version": version_of(pair)})

    async def _drawn(self, regions: list[Region], size: Size, pair: Pair) -> list[RequestedObject]:
        drawn = [each for each in regions if each.type in (BRUSH, POLYGON)]
        if not drawn:
            return []
        if len(drawn) > MAX_OBJECTS:
            raise Problem(422, f"{len(drawn)} brushes and polygons: one call takes {MAX_OBJECTS}")
        found = await self._bridge.in_thread(size, drawn, lambda each: drawn_prompt(each, size, pair.family))
        return [each for each in found if each is not None]

    async def _image(self, task: Task, control: Control) -> StoredImage:
        address = task.data.get(control.key)
        if not isinstance(address, str):
            raise Problem(422, f"the task has no image in `{control.key}`")
        return await self._images.image(address, task.id)


def router(bridge: Bridge) -> APIRouter:
    api = APIRouter(prefix="/label-studio")
    tool = _Tool(bridge)

    @api.get("")
    @api.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "UP", "model_class": "triton_sam"}

    @api.post("/setup")
    async def setup(_: Request) -> dict[str, str]:
        return {"model_version": version_of(await bridge.pair(None))}

    @api.get("/versions")
    async def versions() -> dict[str, list[str]]:
        return {"versions": [version_of(await bridge.pair(None))]}

    @api.post("/webhook", status_code=201)
    async def webhook(_: Request) -> dict[str, str]:
        """Accept an event without doing anything: the models do not learn from annotations."""
        return {"status": "ok"}

    @api.post("/predict")
    async def predict(request: Request) -> Response:
        """Return the mask of the clicked or boxed object, or all instances of words.

        Words come from a text area. Without clicks and words, the labels of the configuration are the words.
        """
        return await tool.predict(request, await bridge.read(request, PredictRequest))

    return api


def prediction_of(results: list[dict[str, Any]], pair: Pair) -> dict[str, Any]:
    score = float(np.mean([each["score"] for each in results])) if results else 0.0
    return {"result": results, "score": score, "model_version": version_of(pair)}


def control_of(config: str) -> Control:
    """Return the tag of a labelling configuration that accepts masks."""
    try:
        tree = ElementTree.fromstring(config)  # noqa: S314 - expat limits the expansion of entities
    except ElementTree.ParseError:
        raise Problem(422, "the labelling setup is not valid XML") from None
    images: dict[str | None, ElementTree.Element] = {}
    for image in tree.iter("Image"):
        name = image.get("name")
        if name and images.setdefault(name, image) is not image:
            raise Problem(422, f"two images of the labelling setup have the name {name!r:.60}: rename one")
    for tag, kind in CONTROLS.items():
        for element in tree.iter(tag):
            shown = images.get(element.get("toName"))
            if shown is not None:
                labels = tuple(each.get("value", "") for each in element.iter("Label") if each.get("value"))
                key = shown.get("value", "").removeprefix("$")
                return Control(element.get("name", ""), shown.get("name", ""), kind, key, labels)
    raise Problem(422, f"the labelling setup needs {' or '.join(CONTROLS)} with toName of an Image")


def result_of(segment: Segment, control: Control, label: str | None) -> dict[str, Any] | None:
    """Return a mask as a region of Label Studio; None if the mask is empty."""
    height, width = segment.mask.shape
    value = _brush(segment) if control.kind == BRUSH else _polygon(segment)
    if value is None:
        return None
    return {
        "id": uuid.uuid4().hex[:10],
        "from_name": control.name,
        "to_name": control.image,
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "type": control.kind,
        "value": {**value, control.kind: [] if label is None else [label]},
        "score": segment.score,
        "readonly": False,
    }


def version_of(pair: Pair) -> str:
    return f"triton_sam-{pair.name}-{pair.version}"


def _brush(segment: Segment) -> dict[str, Any] | None:
    return {"format": "rle", "rle": encode_brush(segment.mask)} if segment.box is not None else None


def _polygon(segment: Segment) -> dict[str, Any] | None:
    """Return the largest part as a polygon, in percent: a region of Label Studio has one ring."""
    rings = mask_to_polygons(segment.mask)
    if not rings:
        return None
    height, width = segment.mask.shape
    points = np.reshape(rings[0], (-1, 2)) * (100.0 / np.array([width, height]))
    return {"points": points.tolist(), "closed": True}


ADAPTER = Adapter(
    name="label-studio",
    paths=("/label-studio",),
    router=router,
    error=lambda problem: problem.detail,
    token=basic_password,
    sign_in="enter a token of this service as the password of the basic authentication, with any user name",
    open_paths=("/label-studio", "/label-studio/", "/label-studio/health"),
)
