"""The large images of a run and their tiles. The unit of work is a tile instead of an image."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, ImageError, InputError
from ..families.base import Size
from ..inputs.formats import LARGE_SUFFIXES, SUFFIXES
from ..inputs.images import ImageSource
from ..inputs.remote import is_remote, place_of
from ..tiles import LargeImage, open_large_image
from ..tiles.blocks import check_tiles
from ..tiles.folders import is_zarr, large_images_below
from ..tiles.joining import tiles
from ..tiles.pyramid import Region
from .places import FramePlace
from .sources import ImageItem, Skipped, Source, left_out, read_source, reason

_NO_LARGE = dict.fromkeys(SUFFIXES, "small images are annotated without --large")
KEPT = 8
"""Number of large images kept open."""


@dataclass(frozen=True)
class Tiling:
    """How large images are cut.

    Args:
        tile: width and height of a tile, in pixels of the level.
        level: number of the level; 0 is the largest level.
    """

    tile: int = 1024
    overlap: int = 256
    level: int = 0
    channels: tuple[int, ...] = (0, 1, 2)
    index: tuple[tuple[str, int], ...] = ()
    stretch: tuple[float, float] | None = None

    def open(self, path: Path) -> LargeImage:
        """Open an image, see open_large_image()."""
        return open_large_image(path, channels=self.channels, index=dict(self.index), stretch=self.stretch)

    def described(self) -> dict[str, Any]:
        """Return the tiling as JSON values for a manifest, without unset fields."""
        values = asdict(self)
        return {name: value for name, value in values.items() if name not in ("index", "stretch") or value}

    def check(self) -> None:
        """Check the values without reading a file."""
        check_tiles(self.tile, self.overlap, "--")
        if self.level < 0:
            raise ConfigurationError(f"--level must be at least 0, not {self.level}")


@dataclass(frozen=True)
class LargeItem(ImageItem):
    """A large image of a run. Its ``size`` is the size of the largest level."""

    level: Size = (0, 0)


@dataclass(frozen=True)
class TileItem(ImageItem):
    """A tile of a large image. Its ``size`` is the size of the tile, and its name ends with ``#x1,y1,x2,y2``.

    Args:
        region: x1, y1, x2, y2 in pixels of the level.
    """

    image: LargeItem = LargeItem(0, "", Path())
    region: Region = (0, 0, 0, 0)
    tiling: Tiling = Tiling()

    def content(self) -> ImageSource:
        """Read the pixels of the tile, uint8 (h,w,3)."""
        with _OPEN.image(file_of(self), self.tiling) as image:
            return image.levels[self.tiling.level].read(*self.region)


def read_large_source(source: str, images: Path | None, every: int, tiling: Tiling) -> Source:
    """Find the large images of a source.

    Args:
        source: a file such as a TIFF, the folder of an OME-Zarr image, a folder of both, a glob pattern, or a list or
            COCO data set of files. A URL is supported for each.

    Returns:
        The images as LargeItem.
    """
    path = place_of(source)
    if _is_searched(path):
        others: list[Path] = []
        is_image = path.suffix.lower() in LARGE_SUFFIXES or is_zarr(path)
        pairs = [(path.name, path)] if is_image else large_images_below(path, others)
        items = tuple(ImageItem(number, name, each) for number, (name, each) in enumerate(pairs, 1))
        found = Source(items, left_out=left_out(others, _NO_LARGE))
    else:
        found = read_source(source, images)
    kept: list[ImageItem] = []
    skipped = list(found.skipped)
    for item in found.items[::every]:
        try:
            kept.append(_measured(item, tiling))
        except InputError as error:
            skipped.append(Skipped(item.name, "image", str(error)))
    if not kept:
        why = reason(replace(found, skipped=tuple(skipped)))
        raise InputError(f"{source}: there is no large image{why}. Give a TIFF file, an OME-Zarr folder, or a folder")
    return replace(found, items=tuple(kept), skipped=tuple(skipped))


def tiles_of(source: Source, tiling: Tiling) -> Iterator[TileItem]:
    """Yield the tiles of all images, row by row, with ids from 1."""
    number = 0
    for item in source.items:
        if isinstance(item, LargeItem):
            for region in tiles(item.level, tiling.tile, tiling.overlap):
                number += 1
                name = f"{item.name}#{','.join(map(str, region))}"
                size = (region[2] - region[0], region[3] - region[1])
                yield TileItem(number, name, item.path, size, item, region, tiling)


def _is_searched(path: Path) -> bool:
    """Return whether a source is a folder or, at a URL, one image. Object stores have only names, not folders."""
    if not is_remote(path):
        return path.is_dir()
    return "*" not in str(path) and path.suffix.lower() not in (".json", ".txt")


def file_of(item: ImageItem) -> Path:
    """Return the file of an image."""
    if isinstance(item.path, FramePlace):
        raise ImageError("a frame of a video is not a large image")
    return item.path


def _measured(item: ImageItem, tiling: Tiling) -> LargeItem:
    """Open an image to read its size."""
    path = file_of(item)
    with tiling.open(path) as image:
        if item.size is not None and item.size != image.size:
            (width, height), (told_width, told_height) = image.size, item.size
            raise ImageError(
                f"the file has {width} x {height} pixels, and the source says {told_width} x {told_height}"
            )
        if tiling.level >= len(image.levels):
            raise ImageError(f"there is no level {tiling.level}: the last one is {len(image.levels) - 1}")
        return LargeItem(item.id, item.name, path, image.size, image.levels[tiling.level].size)


class _OpenImages:
    """Keeps the last files open for all threads. A file is never closed while a thread reads it."""

    def __init__(self) -> None:
        self._images: OrderedDict[tuple[Path, Tiling], LargeImage] = OrderedDict()
        self._readers: dict[tuple[Path, Tiling], int] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def image(self, path: Path, tiling: Tiling) -> Iterator[LargeImage]:
        """Open an image, or take it from the cache, while the block runs."""
        key = (path, tiling)
        with self._lock:
            if key not in self._images:
                self._images[key] = tiling.open(path)
            self._images.move_to_end(key)
            image = self._images[key]
            self._readers[key] = self._readers.get(key, 0) + 1
        try:
            yield image
        finally:
            with self._lock:
                self._readers[key] -= 1
                self._trim(KEPT)

    def close(self) -> None:
        """Close all files that are not being read."""
        with self._lock:
            self._trim(0)

    def _trim(self, count: int) -> None:
        for key in [key for key in self._images if not self._readers[key]][: max(0, len(self._images) - count)]:
            self._images.pop(key).close()
            del self._readers[key]


_OPEN = _OpenImages()
close_files = _OPEN.close
