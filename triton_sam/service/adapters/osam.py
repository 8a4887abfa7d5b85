"""osam: `POST /api/generate`. Reference: osam/_server.py and osam/types of https://github.com/wkentaro/osam."""

from __future__ import annotations

import base64
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from ...masks.label_map import mask_to_png
from ...masks.segment import Segment
from ..engine import Pair
from ..problems import Problem
from ..store import StoredImage
from .adapter import Adapter
from .bridge import Bridge, Lenient, Target, json_answer

BACKGROUND, FOREGROUND, TOP_LEFT, BOTTOM_RIGHT = 0, 1, 2, 3
"""The labels of points."""
SIZES = {"100m": "vit_b", "300m": "vit_l", "600m": "vit_h", "tiny": "tiny", "small": "small", "large": "large"}
NAMES = {
    "nms": "prompt.iou_threshold",
    "threshold": "prompt.score_threshold",
    "limit": "prompt.max_annotations",
    "text": "prompt.texts",
}
"""osam's names of the filters."""
FAMILIES = {"sam": "sam1", "sam1": "sam1", "sam2": "sam2", "sam3": "sam3"}
SINGLE = {"sam1", "mobilesam"}
"""Families for which osam's decoder chooses one mask: the best candidate for one point, else the single mask."""
MAX_ID_BYTES = 64


class Prompt(Lenient):
    """Points with labels, which may include the corners of a box, or texts with filters; the defaults are osam's."""

    points: list[list[float]] | None = None
    point_labels: list[int] | None = None
    texts: list[str] | None = None
    iou_threshold: float | None = 0.5
    score_threshold: float | None = 0.1
    max_annotations: int | None = 100


class GenerateRequest(Lenient):
    model: str = Field(max_length=128)
    image: str | None = None
    image_embedding: dict[str, Any] | None = None
    prompt: Prompt | None = None


def router(bridge: Bridge) -> APIRouter:
    api = APIRouter()

    @api.post("/api/generate")
    async def generate(request: Request) -> Response:
        """Return the mask of an object. Without a prompt, segment the object in the middle of the image, as in osam."""
        asked = await bridge.read(request, GenerateRequest)
        pair = await _pair(bridge, asked.model)
        image = await _image(bridge, asked)
        if asked.prompt is not None and asked.prompt.texts and not asked.prompt.points:
            annotations = await _instances(bridge, request, image, pair, asked.prompt)
        else:
            width, height = image.size
            prompt = asked.prompt or Prompt(points=[[width / 2, height / 2]], point_labels=[FOREGROUND])
            annotations = await _best(bridge, request, image, pair, target_of(prompt))
        return json_answer({"model": asked.model, "image_embedding": stand_in(image), "annotations": annotations})

    return api


def stand_in(image: StoredImage) -> dict[str, Any]:
    """Return an embedding of osam's type whose numbers are the bytes of an image id."""
    width, height = image.size
    numbers = list(map(float, bytes.fromhex(image.image_id)))
    return {"original_height": height, "original_width": width, "embedding": [[numbers]], "extra_features": []}


def id_in(embedding: dict[str, Any]) -> str | None:
    """Return the image id of an earlier response's embedding; None if the embedding is from elsewhere."""
    match embedding.get("embedding"):
        case [[[*numbers]]] if len(numbers) <= MAX_ID_BYTES and not embedding.get("extra_features"):
            if all(number in range(256) for number in numbers):
                return bytes(map(int, numbers)).hex()
    return None


def target_of(prompt: Prompt) -> Target:
    """Return the object of a prompt; points with the labels 2 and 3 are the corners of a box."""
    points, labels = prompt.points or [], prompt.point_labels or []
    if len(points) != len(labels):
        raise Problem(422, "points and point_labels must have the same number of rows")
    if not set(labels) <= {BACKGROUND, FOREGROUND, TOP_LEFT, BOTTOM_RIGHT}:
        raise Problem(422, "point_labels must contain only 0, 1, 2, or 3")
    corners = [[point for point, label in zip(points, labels, strict=True) if label == each] for each in (2, 3)]
    if sorted(map(len, corners)) not in ([0, 0], [1, 1]):
        raise Problem(422, "a box needs one point with the label 2 and one with the label 3")
    clicks = [(point, label) for point, label in zip(points, labels, strict=True) if label in (BACKGROUND, FOREGROUND)]
    box = [*corners[0][0], *corners[1][0]] if corners[0] else None
    return Target([point for point, _ in clicks], [label for _, label in clicks], box)


def annotation(segment: Segment) -> dict[str, Any] | None:
    """Return a mask as osam's annotation, cropped to its box, whose corners are pixels inside; None if it is empty."""
    if segment.box is None:
        return None
    x1, y1, x2, y2 = segment.box
    cropped = mask_to_png(segment.mask[y1:y2, x1:x2])
    return {
        "bounding_box": {"xmin": x1, "ymin": y1, "xmax": x2 - 1, "ymax": y2 - 1},
        "text": segment.label or None,
        "score": segment.score,
        "mask": base64.b64encode(cropped).decode(),
    }


async def _image(bridge: Bridge, asked: GenerateRequest) -> StoredImage:
    """Return the image of a request. The embedding takes precedence over the image, as in osam."""
    known = None if asked.image_embedding is None else id_in(asked.image_embedding)
    if known is not None and (asked.image is None or bridge.engine.images.get(known) is not None):
        return bridge.engine.image(known)
    if asked.image is not None:
        return await bridge.image(asked.image, upright=False)  # as osam reads images
    if asked.image_embedding is None:
        raise Problem(422, "send an image: its bytes as base64 in `image`, or the `image_embedding` of an answer")
    raise Problem(422, "image_embedding: only those of this service's answers are accepted: send `image`")


async def _best(
    bridge: Bridge, request: Request, image: StoredImage, pair: Pair, target: Target
) -> list[dict[str, Any]]:
    """Return the mask in osam's response: the candidate with the best score, or the single mask."""
    is_single = pair.family.name in SINGLE and (target.box is not None or len(target.points) > 1)
    [candidates] = await bridge.masks(request, image, pair, [target], annotation, multimask=not is_single)
    return sorted(candidates, key=lambda each: -each["score"])[:1]


async def _instances(
    bridge: Bridge, request: Request, image: StoredImage, pair: Pair, prompt: Prompt
) -> list[dict[str, Any]]:
    """Return the annotations of all instances of the texts, sorted by score, at most ``max_annotations``."""
    filters = {"nms": prompt.iou_threshold, "threshold": prompt.score_threshold, "limit": prompt.max_annotations}
    found = await bridge.instances(request, image, pair, prompt.texts or (), annotation, names=NAMES, **filters)
    annotations = sorted(found, key=lambda each: -each["score"])
    return annotations[: prompt.max_annotations]


async def _pair(bridge: Bridge, model: str) -> Pair:
    name, _, size = model.partition(":")
    return await bridge.pair(FAMILIES.get(name, name), SIZES.get(size, ""))


ADAPTER = Adapter(
    name="osam",
    paths=("/api/generate",),
    router=router,
    error=lambda problem: {"detail": problem.detail},
)
