"""The embeddings beside large images, as `triton-sam large precompute` writes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeAlias

from ..._common.lru import ByteLru
from ...client.server_models import EncoderIdentity
from ...errors import ConfigurationError
from ...families import model_name
from ...families.tables import ENCODER
from ...inputs.images import image_bytes
from ...tiles import LargeImage
from ...tiles.stored import StoredTiles, default_path
from ..engine import Engine, Pair
from ..problems import Problem
from ..store import Origin, StoredImage
from .folder import LargeFolder

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
