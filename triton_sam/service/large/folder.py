"""The large images of a folder. Callers use ids from a list, never paths."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import math
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from pydantic import BaseModel, Field

from ..._common.text import valid_utf8
from ...errors import ImageError
from ...tiles import LargeImage, open_large_image
from ...tiles.folders import large_images_below
from ...tiles.opening import check_packages
from ...tiles.pyramid import Region, Window
from .. import background
from ..budgets import MEGA
from ..engine import Engine
from ..problems import Problem

TILE = 512
"""Width and height of the tiles that callers receive."""
KEPT = 16
"""Maximum number of open files."""
FRESH_SECONDS = 1.0
"""Minimum seconds between searches of the folder."""


class LargeImageName(BaseModel):
    """A large image."""

    id: str = Field(description="The id for the other routes: it stays the same while the name does.")
    name: str = Field(description="The path relative to the folder.")


class LargeImages(BaseModel):
    """All large images of the folder."""

    images: list[LargeImageName]


class LargeLevel(BaseModel):
    """A level of tiles, with half as many pixels per side as the previous level."""

    level: int
    width: int = Field(description="The width of the level in pixels.")
    height: int
    columns: int = Field(description="The number of tiles from left to right.")
    rows: int


class LargeImageInfo(LargeImageName):
    """A large image with its levels."""

    width: int = Field(description="The width of the image in pixels.")
    height: int
    tile: int = Field(description="The width and height of a tile; the last ones of a row or column are smaller.")
    levels: list[LargeLevel] = Field(description="All levels; level 0 is the image itself.")
    epsg: int | None = Field(description="The EPSG number of the map's reference system; null if there is none.")
    version: str = Field(description="It changes with the file: `?version=` keeps a tile's URL apart from older ones.")


@dataclass(eq=False)
class _Opened:
    stamp: tuple[int, int]
    image: LargeImage
    readers: int = 0
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True
        self.image.close()


class LargeFolder:
    """The large images of a folder, used on one event loop.

    Args:
        folder: the folder, searched again for each list. Links to files outside are ignored.
        engine: its workers read the files, within their limits.
    """

    def __init__(self, folder: str, engine: Engine) -> None:
        check_packages()
        self._folder = Path(folder).resolve()
        self._engine = engine
        self._paths: dict[str, tuple[str, Path]] = {}
        self._open: OrderedDict[str, _Opened] = OrderedDict()
        self._replaced: list[_Opened] = []
        self._opening: dict[str, asyncio.Lock] = {}
        self._search = asyncio.Lock()
        self._searched = -math.inf

    async def names(self) -> list[LargeImageName]:
        async with self._search:
            if time.monotonic() - self._searched > FRESH_SECONDS:
                self._paths = await asyncio.to_thread(self._find)
                self._searched = time.monotonic()
        return [LargeImageName(id=image_id, name=valid_utf8(name)) for image_id, (name, _) in self._paths.items()]

    @contextlib.asynccontextmanager
    async def image(self, image_id: str) -> AsyncIterator[tuple[str, LargeImage]]:
        """Yield the name and the image of an id; the file stays open in the block."""
        if image_id not in self._paths:
            await self.names()
        if image_id not in self._paths:
            raise Problem(404, "there is no large image with this id: see GET /v1/large", code="unknown_image")
        name, path = self._paths[image_id]
        opened = await background.finish(self._opened(image_id, path))
        while opened.is_closed:  # other requests evicted it before this one continued
            opened = await background.finish(self._opened(image_id, path))
        opened.readers += 1
        try:
            yield name, opened.image
        finally:
            opened.readers -= 1
            self._trim()

    async def tile(self, image: LargeImage, level: int, column: int, row: int) -> bytes:
        described = levels_of(image)
        known = level < len(described) and column < described[level].columns and row < described[level].rows
        if not known:
            raise Problem(404, "there is no such tile: GET /v1/large/ID lists the levels", code="unknown_tile")
        side = TILE << level
        region = image.clip((column * side, row * side, (column + 1) * side, (row + 1) * side))
        wide, high = (max(1, -(-(region[axis + 2] - region[axis]) // (1 << level))) for axis in (0, 1))

        def encode(window: Window) -> bytes:
            picture = Image.fromarray(window.pixels)
            if picture.size != (wide, high):
                picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=88)
            return buffer.getvalue()

        window = await self.window(image, region, max(wide, high))
        return await asyncio.to_thread(encode, window)

    async def window(self, image: LargeImage, region: Region, side: int) -> Window:
        """Read a part, within the limits of the service. See LargeImage.window()."""
        pixels = image.pixels_of(region, side)
        most = self._engine.settings.max_megapixels
        if pixels > most * MEGA:
            text = f"{pixels / MEGA:.1f} million pixels would have to be read, and at most {most:g} million may"
            raise Problem(422, f"{text}: the file needs a pyramid, for example by `vips tiffsave --pyramid`")
        return await self._engine.budgets.workers.call(pixels, image.window, region, side)

    def version(self, image_id: str) -> str:
        """Return the version of an image that is open in a block of image()."""
        modified, size = self._open[image_id].stamp
        return f"{modified:x}-{size:x}"

    def path(self, image_id: str) -> Path:
        return self._paths[image_id][1]

    def check_links(self, folder: Path) -> None:
        """Reject a Zarr folder with parts outside the folder of large images."""
        parts = (Path(where, name) for where, folders, files in os.walk(folder) for name in (*folders, *files))
        for part in (folder, *parts):
            if part.is_symlink() and not part.resolve().is_relative_to(self._folder):
                raise ImageError(f"{folder.name} has a link that leads out of the folder of large images")

    def close(self) -> None:
        for opened in (*self._open.values(), *self._replaced):
            opened.close()
        self._open.clear()
        self._replaced.clear()

    def _find(self) -> dict[str, tuple[str, Path]]:
        found = large_images_below(self._folder)
        inside = [(name, path) for name, path in found if path.resolve().is_relative_to(self._folder)]
        ids = (hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32] for name, _ in inside)
        return dict(zip(ids, inside, strict=True))

    async def _opened(self, image_id: str, path: Path) -> _Opened:
        """Return an open image; a replaced file is opened again.

        Threads read files, but only the event loop changes the table of open files. The caller runs this to completion.
        """
        async with self._opening.setdefault(image_id, asyncio.Lock()):
            stamp = await asyncio.to_thread(_stamp, path)
            known = self._open.get(image_id)
            if known is None or known.stamp != stamp:
                opened = _Opened(stamp, await asyncio.to_thread(self._read, path))
                if image_id in self._open:
                    self._replaced.append(self._open[image_id])
                self._open[image_id] = opened
            self._open.move_to_end(image_id)
            return self._open[image_id]

    def _read(self, path: Path) -> LargeImage:
        if path.is_dir():
            self.check_links(path)
        return open_large_image(path)

    def _trim(self) -> None:
        """Close files without readers: replaced ones, and the least recently used beyond KEPT."""
        idle = [image_id for image_id, opened in self._open.items() if not opened.readers]
        for image_id in idle[: max(0, len(self._open) - KEPT)]:
            self._replaced.append(self._open.pop(image_id))
        ended = [opened for opened in self._replaced if not opened.readers]
        for opened in ended:
            self._replaced.remove(opened)
            opened.close()


def levels_of(image: LargeImage) -> list[LargeLevel]:
    """Return the levels for callers, down to the one with a single tile. They are independent of the file's levels."""
    levels: list[LargeLevel] = []
    width, height = image.size
    while True:
        number = len(levels)
        wide, high = (max(1, -(-side // (1 << number))) for side in (width, height))
        columns, rows = -(-wide // TILE), -(-high // TILE)
        levels.append(LargeLevel(level=number, width=wide, height=high, columns=columns, rows=rows))
        if columns == rows == 1:
            return levels


def describe(image_id: str, name: str, version: str, image: LargeImage) -> LargeImageInfo:
    width, height = image.size
    epsg = image.georeference.epsg if image.georeference else None
    return LargeImageInfo(
        id=image_id,
        name=valid_utf8(name),
        version=version,
        width=width,
        height=height,
        tile=TILE,
        levels=levels_of(image),
        epsg=epsg,
    )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise Problem(404, "this large image no longer exists", code="unknown_image") from error
    return status.st_mtime_ns, status.st_size
