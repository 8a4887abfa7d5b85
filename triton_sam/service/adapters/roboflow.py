"""Roboflow's inference server, as `inference-sdk` calls it.

Reference: inference/core/entities/requests/sam2.py and sam3.py of https://github.com/roboflow/inference.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request, Response
from pydantic import Field, field_validator

from ..._common.lru import ByteLru
from ...families.base import FloatArray
from ...masks.polygons import mask_to_polygons
from ...masks.rle import BoolArray
from ...masks.segment import Segment
from ..engine import Pair
from ..problems import Problem
from ..quotas import CALLER
from ..store import StoredImage
from .adapter import Adapter
from .bridge import Bridge, Lenient, Target, json_answer
from .roboflow_concepts import ConceptRequest, find_concepts

MAX_BYTES = 64 << 20
"""Maximum bytes of stored logits; the least recently used are evicted. An object of SAM2 takes 256 KiB."""


@dataclass(frozen=True)
class _Known:
    """A prompt in a comparable form: its box, and its points with labels in any order."""

    box: tuple[float, ...] | None
    points: frozenset[tuple[float, float, int]]


@dataclass(frozen=True)
class _Saved:
    owner: Hashable
    prompts: tuple[_Known, ...]
    logits: Sequence[FloatArray]

    @property
    def points(self) -> int:
        return sum(len(each.points) for each in self.prompts)


class LogitsCache:
    """Stores the logits of responses, separately for each caller, image and model.

    A later call with more points refines them. Reference: find_prior_prompt_in_cache() in
    inference/models/sam2/segment_anything2.py. Unlike there, each object refines its own mask, even if the order
    changes.
    """

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._saved: ByteLru[tuple[Hashable, tuple[_Known, ...]], _Saved] = ByteLru(limit)

    def save(self, owner: Hashable, targets: Sequence[Target], logits: Sequence[FloatArray]) -> None:
        prompts = tuple(map(_known, targets))
        self._saved.put((owner, prompts), _Saved(owner, prompts, logits), sum(each.nbytes for each in logits))

    def load(self, owner: Hashable, targets: Sequence[Target]) -> list[FloatArray | None]:
        """Return for each object the logits that it refines; None for an object without logits.

        The logits are those of an earlier call whose objects are all in this call, which adds a point or an object. The
        newest call with one point less takes precedence, then the call with the most points.
        """
        prompts = tuple(map(_known, targets))
        count = sum(len(each.points) for each in prompts)
        best: tuple[tuple[bool, int], list[FloatArray | None]] | None = None
        for saved in reversed(list(self._saved.values())):
            found = _matched(saved, prompts) if saved.owner == owner and saved.prompts != prompts else None
            rank = (saved.points == count - 1, saved.points)
            if found is not None and (best is None or rank > best[0]):
                best = rank, found
        return best[1] if best is not None else [None] * len(prompts)


def _matched(saved: _Saved, prompts: Sequence[_Known]) -> list[FloatArray | None] | None:
    """Return the saved logits in the order of these prompts; None if a saved prompt is missing from them."""
    found: list[FloatArray | None] = [None] * len(prompts)
    for known, logits in zip(saved.prompts, saved.logits, strict=True):
        free = (place for place, each in enumerate(prompts) if found[place] is None and known.box == each.box)
        place = next((place for place in free if known.points <= prompts[place].points), None)
        if place is None:
            return None
        found[place] = logits
    return found


def _known(target: Target) -> _Known:
    points = zip(target.points, target.labels, strict=True)
    box = None if target.box is None else tuple(map(float, target.box))
    return _Known(box, frozenset((float(x), float(y), int(label)) for (x, y), label in points))


SIZES = {
    "hiera_tiny": "tiny",
    "hiera_small": "small",
    "hiera_b_plus": "base_plus",
    "hiera_large": "large",
}
POLYGON, RLE = "polygon", "rle"
FORMATS = {"json": POLYGON, "polygon": POLYGON, "rle": RLE}
MAX_IDS = 4096
"""Maximum number of stored image ids that callers have chosen; each caller has its own."""


class ImageValue(Lenient):
    type: str = Field(default="base64", max_length=32)
    value: str


class Box(Lenient):
    """A box; x and y are its centre."""

    x: float
    y: float
    width: float
    height: float

    def corners(self) -> list[float]:
        return [
            self.x - self.width / 2,
            self.y - self.height / 2,
            self.x + self.width / 2,
            self.y + self.height / 2,
        ]


class Point(Lenient):
    x: float
    y: float
    positive: bool = True


class Prompt(Lenient):
    box: Box | None = None
    points: list[Point] | None = None

    def target(self) -> Target:
        points = self.points or []
        return Target(
            [[each.x, each.y] for each in points],
            [int(each.positive) for each in points],
            None if self.box is None else self.box.corners(),
        )


class EmbedRequest(Lenient):
    image: ImageValue
    image_id: str | None = Field(default=None, max_length=256)
    sam2_version_id: str | None = Field(default=None, max_length=64)


class SegmentRequest(Lenient):
    """Objects to segment: a list of prompts, a member ``prompts`` with that list, or a single prompt."""

    image: ImageValue | None = None
    image_id: str | None = Field(default=None, max_length=256)
    sam2_version_id: str | None = Field(default=None, max_length=64)
    prompts: list[Prompt] = Field(default_factory=list)
    multimask_output: bool = True
    format: str = Field(default="json", max_length=32)
    save_logits_to_cache: bool = False
    load_logits_from_cache: bool = False

    @field_validator("prompts", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        if value is None:
            return []
        if isinstance(value, dict):
            value = value.get("prompts", [value])
        return value or []


class ConceptSegmentRequest(ConceptRequest):
    image: ImageValue | None = None
    image_id: str | None = Field(default=None, max_length=256)


class _Tool:
    """Handlers of the routes, which differ only in the family."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._ids: ByteLru[tuple[str, str], str] = ByteLru(MAX_IDS)
        self._logits = LogitsCache()

    async def embed(self, request: Request, family: str) -> Response:
        started = time.monotonic()
        body = await self._bridge.read(request, EmbedRequest)
        pair = await self._pair(family, body)
        image = await self._image(request, body)
        await self._bridge.run(request, self._bridge.engine.embed(image, pair))
        return json_answer({"image_id": body.image_id or image.image_id, "time": time.monotonic() - started})

    async def segment(self, request: Request, family: str) -> Response:
        started = time.monotonic()
        body = await self._bridge.read(request, SegmentRequest)
        form = _form(body.format)
        targets = [prompt.target() for prompt in body.prompts]
        if not targets or any(target.is_empty for target in targets):
            raise Problem(422, "each prompt needs points, a box, or both, and there must be at least one prompt")
        pair = await self._pair(family, body)
        image = await self._image(request, body)
        owner = (str(request.scope.get(CALLER)), image.image_id, pair.name, pair.version)
        if body.load_logits_from_cache and pair.family.takes_mask:
            earlier = self._logits.load(owner, targets)
            asked = [replace(target, mask=mask) for target, mask in zip(targets, earlier, strict=True)]
        else:
            asked = targets
        found = await self._bridge.masks(
            *(request, image, pair, asked, lambda each: (prediction(each, form), each.logits)),
            multimask=body.multimask_output,
        )
        best = [max(candidates, key=lambda each: each[0]["confidence"]) for candidates in found]
        if body.save_logits_to_cache:
            self._logits.save(owner, targets, [logits for _, logits in best if logits is not None])
        return json_answer({"predictions": [each for each, _ in best], "time": time.monotonic() - started})

    async def find(self, request: Request) -> Response:
        started = time.monotonic()
        body = await self._bridge.read(request, ConceptSegmentRequest)
        form = _form(body.format)
        image = await self._image(request, body)
        results = await find_concepts(self._bridge, request, image, body, lambda each: prediction(each, form))
        return json_answer({"prompt_results": results, "time": time.monotonic() - started})

    async def _pair(self, family: str, body: EmbedRequest | SegmentRequest) -> Pair:
        return await self._bridge.pair(family, SIZES.get(body.sam2_version_id or "", ""))

    async def _image(
        self, request: Request, body: EmbedRequest | SegmentRequest | ConceptSegmentRequest
    ) -> StoredImage:
        """Return the image of a request: a known id takes precedence over `image`, as in Roboflow."""
        caller = str(request.scope.get(CALLER))
        known = self._ids.get((caller, body.image_id)) if body.image_id else None
        if known is not None and (body.image is None or self._bridge.engine.images.get(known) is not None):
            return self._bridge.engine.image(known)
        if body.image is None:
            raise Problem(422, "there is no image: send it in `image`, or the `image_id` of an embedded one")
        if body.image.type != "base64":
            raise Problem(422, f"images of type {body.image.type!r} are not supported: send base64")
        image = await self._bridge.image(body.image.value)
        if body.image_id:
            self._ids.put((caller, body.image_id), image.image_id)
        return image


def router(bridge: Bridge) -> APIRouter:
    api = APIRouter()
    tool = _Tool(bridge)

    def add(family: str, segment_path: str) -> None:
        @api.post(f"/{family}/embed_image")
        async def embed(request: Request) -> Response:
            return await tool.embed(request, family)

        @api.post(f"/{family}/{segment_path}")
        async def segment(request: Request) -> Response:
            return await tool.segment(request, family)

    add("sam2", "segment_image")
    add("sam3", "visual_segment")

    @api.post("/sam3/concept_segment")
    async def find_sam3(request: Request) -> Response:
        return await tool.find(request)

    return api


def prediction(segment: Segment, form: str) -> dict[str, Any]:
    """Return a mask as a prediction: RLE, or polygons through the centres of its outer pixels."""
    masks = segment.to_rle() if form == RLE else pixel_polygons(segment.mask)
    return {"masks": masks, "confidence": segment.score, "format": form}


def _form(name: str) -> str:
    if name not in FORMATS:
        raise Problem(422, f"there is no format {name[:40]!r} here: choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def pixel_polygons(mask: BoolArray) -> list[list[list[int]]]:
    """Return columns and rows of the outer pixels of a mask (H,W): one ring for each part, with holes filled.

    OpenCV's findContours() returns the same kind of rings, and its fillPoly() converts them back to the mask.
    """
    return [_outer_pixels(np.reshape(ring, (-1, 2)) - 0.5, mask) for ring in mask_to_polygons(mask, 0)]


def _outer_pixels(ring: npt.NDArray[np.float64], mask: BoolArray) -> list[list[int]]:
    """Return the mask's pixels at the corners of its outline; each corner is between two pixels."""
    low, high = np.floor(ring).astype(int), np.ceil(ring).astype(int)
    height, width = mask.shape
    columns, rows = np.clip(low[:, 0], 0, width - 1), np.clip(low[:, 1], 0, height - 1)
    is_low = (low >= 0).all(axis=1) & mask[rows, columns]
    pixels = np.where(is_low[:, None], low, high)
    changes = (pixels != np.roll(pixels, 1, axis=0)).any(axis=1)
    found: list[list[int]] = pixels[changes].tolist() or pixels[:1].tolist()
    return found


ADAPTER = Adapter(
    name="roboflow",
    paths=("/sam2", "/sam3"),
    router=router,
    error=lambda problem: {"message": problem.detail},
    token=lambda scope: parse_qs(scope.get("query_string", b"").decode("latin-1")).get("api_key", [""])[0],
    sign_in='give InferenceHTTPClient a token of this service as api_key, and configure api_key_transport="header"',
)
