"""Clicks on a large image: the part around them is cropped and sent, and the mask is placed in the image.

`triton-sam large precompute` may have written embeddings beside the image.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..._common.lru import ByteLru
from ...client.server_models import EncoderIdentity
from ...errors import ConfigurationError
from ...families import model_name
from ...families.tables import ENCODER
from ...inputs.images import image_bytes
from ...masks.segment import FORMATS, Segment
from ...tiles import LargeImage, LargeObject
from ...tiles.parts import SIDE, is_cut, length_for, part_around
from ...tiles.pyramid import Window
from ...tiles.stored import StoredTiles, default_path
from ..engine import Engine, Pair
from ..problems import Problem
from ..schemas import coco_box
from ..store import Origin, StoredImage
from .folder import LargeFolder
from .schemas import LargeMask, LargeSegmentRequest

ENLARGE = 2
"""How often a part of twice the length is tried if the mask reaches its border."""

KEPT = 16
"""Maximum number of images whose embeddings stay open."""

_Known: TypeAlias = tuple[LargeImage, Origin, float, StoredTiles]


class LargeEmbeddings:
    """Finds the embeddings of an image and a pair, and checks them once. Used on one event loop."""

    def __init__(self, folder: LargeFolder, engine: Engine) -> None:
        self._folder = folder
        self._engine = engine
        self._known: ByteLru[Path, _Known] = ByteLru(KEPT)

    async def of(self, image_id: str, image: LargeImage, pair: Pair) -> StoredTiles | None:
        """Return the embeddings of an image's tiles; None if there are none."""
        path = default_path(self._folder.path(image_id), pair.name)
        try:
            stamp = (await asyncio.to_thread(path.stat)).st_ctime
        except OSError:
            return None
        known = self._known.get(path)
        if known is not None and known[0] is image and known[1:3] == (pair.origin, stamp):
            return known[3]
        tiles = await asyncio.to_thread(self._opened, path, image)
        await self._check(tiles, pair)
        self._known.put(path, (image, pair.origin, stamp, tiles))
        return tiles

    async def adopt(self, stored: StoredImage, tiles: StoredTiles, number: int, pair: Pair) -> None:
        """Store a tile's embeddings with its pixels, so that no request encodes them."""
        await self._engine.adopt(stored, pair, lambda: tiles.embeddings(number, model_name(pair.name, ENCODER)))

    def _opened(self, path: Path, image: LargeImage) -> StoredTiles:
        self._folder.check_links(path)
        return StoredTiles(path, image)

    async def _check(self, tiles: StoredTiles, pair: Pair) -> None:
        encoder = await self._engine.encoder(pair)
        try:
            if tiles.check_encoder(encoder):
                return
            sample = await asyncio.to_thread(tiles.sample)
            if sample is not None:
                await self._check_sample(tiles, sample[0], image_bytes(sample[1]), encoder, pair)
        except ConfigurationError as error:
            raise Problem(422, str(error), code="stale_embeddings") from error

    async def _check_sample(
        self, tiles: StoredTiles, number: int, content: bytes, encoder: EncoderIdentity, pair: Pair
    ) -> None:
        fresh = await self._engine.encode_here(content, pair)
        await asyncio.to_thread(tiles.check_sample, number, fresh, encoder.encoder)


@dataclass(frozen=True)
class ImageTiles:
    """An image with its tile embeddings, for one pair."""

    image: LargeImage
    tiles: StoredTiles | None
    pair: Pair


async def segment(
    engine: Engine, folder: LargeFolder, embeddings: LargeEmbeddings, where: ImageTiles, request: LargeSegmentRequest
) -> list[LargeMask]:
    """Return the mask of the object, or its three candidates."""
    image = where.image
    around = _points_of(request, image)
    least = SIDE * 2 ** round(math.log2(request.scale))
    length = length_for(around, min(least, max(image.size)))
    tile = _tile(where.tiles, around, least)
    for attempt in range(ENLARGE + 1):
        region = image.clip(part_around(around, length, image.size))
        if attempt == 0 and where.tiles is not None and tile is not None:
            stored, window = await _read_tile(engine, folder, embeddings, where, where.tiles, tile)
        else:
            window = await folder.window(image, region, SIDE)
            stored = await engine.store(image_bytes(window.pixels))  # equal parts share an id: one encode
        masks = await _segment_part(engine, where, request, stored, window)
        best = max(masks, key=lambda mask: mask.score)
        if not best.is_cut or length >= max(image.size) or attempt == ENLARGE:
            break
        length *= 2
    return masks


def _tile(tiles: StoredTiles | None, around: np.ndarray[Any, Any], least: int) -> int | None:
    """Return the number of the tile around a prompt, if it has embeddings and about the requested size."""
    if tiles is None or not least / 2 < tiles.length < least * 2:
        return None
    region = tiles.around(around)
    return None if region is None else tiles.number_of(region)


async def _read_tile(
    engine: Engine, folder: LargeFolder, embeddings: LargeEmbeddings, where: ImageTiles, tiles: StoredTiles, tile: int
) -> tuple[StoredImage, Window]:
    x1, y1, x2, y2 = tiles.blocks.region(tile)
    window = await folder.read((x2 - x1) * (y2 - y1), lambda: tiles.window(tile))
    stored = await engine.store(image_bytes(window.pixels))
    await embeddings.adopt(stored, tiles, tile, where.pair)
    return stored, window


async def _segment_part(
    engine: Engine, where: ImageTiles, request: LargeSegmentRequest, stored: StoredImage, window: Window
) -> list[LargeMask]:
    embeddings = await engine.embed(stored, where.pair)

    def write(segments: Iterator[Segment]) -> list[LargeMask]:
        return [_mask(each, window, where.image, request) for each in segments]

    return await engine.segment(
        embeddings, where.pair, _prompt(request, window), write, multimask=request.multimask, at_a_time=1
    )


def _points_of(request: LargeSegmentRequest, image: LargeImage) -> np.ndarray[Any, Any]:
    """Return the points and the corners of the box, (N,2) in pixels of the image."""
    if request.labels is not None and len(request.labels) != len(request.points):
        raise Problem(422, "labels must hold one label for each point")
    corners = [] if request.box is None else [request.box[:2], request.box[2:]]
    points = np.array([*request.points, *corners], np.float64).reshape(-1, 2)
    if not len(points):
        raise Problem(422, "the prompt is empty: give `points`, `box`, or both")
    if (points > image.size).any():
        raise Problem(422, f"a prompt lies outside of the image of {image.size[0]} x {image.size[1]} pixels")
    return points


def _prompt(request: LargeSegmentRequest, window: Window) -> dict[str, Any]:
    """Return the prompt in pixels of the part, as Engine.segment() takes it."""
    points = window.inside(request.points).tolist() if request.points else None
    labels = None if points is None else [request.labels or [1] * len(points)]
    box = None if request.box is None else [window.inside(np.reshape(request.box, (2, 2))).ravel().tolist()]
    return {"coords": points and [points], "labels": labels, "box": box, "mask_input": None, "cleanup": None}


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
        bbox=placed.box and coco_box(placed.box),
        is_cut=cut,
        region=list(window.region),
        polygons=polygons,
        rle=rle,
    )
