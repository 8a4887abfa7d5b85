"""Clicks on a large image: the part around them is cropped and sent, and the mask is placed in the image.

`triton-sam large precompute` may have written embeddings beside the image.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, Field

from ..._common.lru import ByteLru
from ...client.server_models import EncoderIdentity
from ...errors import ConfigurationError
from ...families import model_name
from ...families.tables import ENCODER
from ...inputs.images import image_bytes
from ...masks.boxes import corner_and_size
from ...masks.segment import FORMATS, TOLERANCE, Segment
from ...tiles import LargeImage, LargeObject
from ...tiles.parts import SIDE, is_cut, length_for, part_around
from ...tiles.pyramid import Window
from ...tiles.stored import StoredTiles, default_path
from ..answers import coordinates
from ..engine import Engine, Pair
from ..problems import Problem
from ..schemas import ImageAnswer, ModelName, Prompt, Score, examples
from ..store import Origin, StoredImage
from .folder import LargeFolder

ENLARGE = 2
"""How often a part of twice the length is tried if the mask reaches its border."""

KEPT = 16
"""Maximum number of images whose embeddings stay open."""

_Known: TypeAlias = tuple[LargeImage, Origin, float, StoredTiles]


class LargeSegmentRequest(Prompt):
    """One object in pixels of the image, and the caller's zoom."""

    model_config = examples(
        {"points": [[1600, 1000]]},
        {"points": [[1600, 1000], [1650, 990]], "labels": [1, 0], "scale": 4, "format": "rle"},
        {"box": [1500, 900, 1720, 1310]},
    )

    scale: float = Field(
        default=1.0,
        ge=1.0,
        le=65_536.0,
        allow_inf_nan=False,
        description="The pixels of the image along a side of a pixel of the screen. The part that is sent has 1024 "
        "times as many on a side, rounded to a power of two, or more if the prompts lie further apart.",
    )
    multimask: bool = Field(
        default=False, description="Whether to answer with all candidates: three, or one with SAM-HQ."
    )
    model: ModelName = None
    format: Literal["polygons", "rle"] = Field(
        default="polygons", description="`polygons` are in pixels of the image; `rle` is the mask of `region`."
    )
    tolerance: float = Field(
        default=TOLERANCE,
        ge=0,
        le=100,
        description="The largest distance between a polygon and the exact outline, in pixels of the mask.",
    )


class LargeMask(BaseModel):
    """One mask."""

    candidate: int = Field(description="The number of the candidate, from 0.")
    score: Score
    area: float = Field(description="The area in pixels of the image.")
    bbox: list[float] | None = Field(
        description="The box in the form of COCO, in pixels of the image. An empty mask has null."
    )
    is_cut: bool = Field(
        description="Whether the mask reaches a border of `region`, so that some of it may be missing."
    )
    region: list[int] = Field(description="The part that the model saw: x1, y1, x2, y2 in pixels of the image.")
    polygons: list[list[list[list[float]]]] | None = Field(
        default=None, description="Each polygon is a list of rings: its outline, and its holes."
    )
    rle: dict[str, Any] | None = Field(
        default=None, description="Compressed COCO RLE of `region`, which may have fewer pixels than the region."
    )


class LargeSegmentAnswer(ImageAnswer):
    """The mask of an object, or its three candidates."""

    masks: list[LargeMask]
    milliseconds: float = Field(description="The time from the parsed request to the masks.")


class LargeSegmenting:
    """Segments objects of the images of a folder. Used on one event loop."""

    def __init__(self, folder: LargeFolder, engine: Engine) -> None:
        self._folder = folder
        self._engine = engine
        self._known: ByteLru[Path, _Known] = ByteLru(KEPT)

    async def segment(
        self, image_id: str, image: LargeImage, pair: Pair, request: LargeSegmentRequest
    ) -> list[LargeMask]:
        """Return the mask of the object, or its three candidates."""
        tiles = await self._tiles(image_id, image, pair)
        around = _points_of(request, image)
        least = SIDE * 2 ** round(math.log2(request.scale))
        length = length_for(around, min(least, max(image.size)))
        tile = None if tiles is None else _tile(tiles, around, least)
        for attempt in range(ENLARGE + 1):
            if attempt == 0 and tiles is not None and tile is not None:
                stored, window = await self._read_tile(tiles, tile, pair)
            else:
                window = await self._folder.window(image, image.clip(part_around(around, length, image.size)), SIDE)
                stored = await self._engine.store(image_bytes(window.pixels))  # equal parts share an id: one encode
            masks = await self._segment_part(image, pair, request, stored, window)
            best = max(masks, key=lambda mask: mask.score)
            if not best.is_cut or length >= max(image.size) or attempt == ENLARGE:
                break
            length *= 2
        return masks

    async def _tiles(self, image_id: str, image: LargeImage, pair: Pair) -> StoredTiles | None:
        """Return the embeddings of an image's tiles, checked once; None if there are none."""
        path = default_path(self._folder.path(image_id), pair.name)
        try:
            stamp = (await asyncio.to_thread(path.stat)).st_ctime
        except OSError:
            return None
        known = self._known.get(path)
        if known is not None and known[0] is image and known[1:3] == (pair.origin, stamp):
            return known[3]

        def opened() -> StoredTiles:
            self._folder.check_links(path)
            return StoredTiles(path, image)

        tiles = await asyncio.to_thread(opened)
        encoder = await self._engine.encoder(pair)
        try:
            await self._check(tiles, encoder, pair)
        except ConfigurationError as error:
            raise Problem(422, str(error), code="stale_embeddings") from error
        self._known.put(path, (image, pair.origin, stamp, tiles))
        return tiles

    async def _check(self, tiles: StoredTiles, encoder: EncoderIdentity, pair: Pair) -> None:
        """Raise a ConfigurationError if another encoder computed the embeddings."""
        if tiles.check_encoder(encoder):
            return
        sample = await asyncio.to_thread(tiles.sample)
        if sample is not None:
            number, pixels = sample
            fresh = await self._engine.encode_here(image_bytes(pixels), pair)
            await asyncio.to_thread(tiles.check_sample, number, fresh, encoder.encoder)

    async def _read_tile(self, tiles: StoredTiles, tile: int, pair: Pair) -> tuple[StoredImage, Window]:
        """Return a tile, stored with its embeddings, so that no request encodes it."""
        x1, y1, x2, y2 = tiles.blocks.region(tile)
        window = await self._engine.budgets.workers.call((x2 - x1) * (y2 - y1), tiles.window, tile)
        stored = await self._engine.store(image_bytes(window.pixels))
        await self._engine.adopt(stored, pair, lambda: tiles.embeddings(tile, model_name(pair.name, ENCODER)))
        return stored, window

    async def _segment_part(
        self, image: LargeImage, pair: Pair, request: LargeSegmentRequest, stored: StoredImage, window: Window
    ) -> list[LargeMask]:
        embeddings = await self._engine.embed(stored, pair)

        def write(segments: Iterator[Segment]) -> list[LargeMask]:
            return [_mask(each, window, image, request) for each in segments]

        prompt = _prompt(request, window)
        return await self._engine.segment(embeddings, pair, prompt, write, multimask=request.multimask)


def _tile(tiles: StoredTiles, around: np.ndarray[Any, Any], least: int) -> int | None:
    """Return the number of the tile around a prompt, if it has about the requested size."""
    if not least / 2 < tiles.length < least * 2:
        return None
    region = tiles.around(around)
    return None if region is None else tiles.number_of(region)


def _points_of(request: LargeSegmentRequest, image: LargeImage) -> np.ndarray[Any, Any]:
    """Return the points and the corners of the box, (N,2) in pixels of the image."""
    prompt = coordinates([request])
    parts = [np.reshape(prompt[part], (-1, 2)) for part in ("coords", "box") if prompt[part]]
    points: np.ndarray[Any, Any] = np.concatenate(parts)
    if (points > image.size).any():
        raise Problem(422, f"a prompt lies outside the image of {image.size[0]} x {image.size[1]} pixels")
    return points


def _prompt(request: LargeSegmentRequest, window: Window) -> dict[str, Any]:
    """Return the prompt in pixels of the part, as Engine.segment() takes it."""
    prompt = coordinates([request])
    for part in ("coords", "box"):
        if prompt[part]:
            placed = window.inside(np.reshape(prompt[part], (-1, 2)))
            prompt[part] = placed.reshape(np.shape(prompt[part])).tolist()
    return prompt


def _mask(segment: Segment, window: Window, image: LargeImage, request: LargeSegmentRequest) -> LargeMask:
    cut = is_cut(segment.mask, window.region, image.size)
    placed = LargeObject(segment.mask, window.region, segment.score, cut, 0, segment.candidate)
    polygons = rle = None
    if request.format == "rle":
        rle = FORMATS["rle"].to_json(segment, request.tolerance)
    else:
        rings = [(each.exterior, *each.holes) for each in placed.polygons(request.tolerance)]
        polygons = [[np.round(ring, 2).tolist() for ring in each] for each in rings]
    return LargeMask(
        candidate=segment.candidate,
        score=segment.score,
        area=placed.area,
        bbox=placed.box and corner_and_size(placed.box),
        is_cut=cut,
        region=list(window.region),
        polygons=polygons,
        rle=rle,
    )
