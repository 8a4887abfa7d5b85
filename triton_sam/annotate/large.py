"""The large images of a run.

The unit of work is a tile instead of an image. Each prompt is assigned to the tile that shows most around it, and the
objects are joined from the records of their tiles.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigurationError, ImageError, InputError
from ..families.base import Size
from ..inputs.formats import LARGE_SUFFIXES, SUFFIXES
from ..inputs.images import ImageSource
from ..inputs.remote import is_remote, place_of
from ..tiles import LargeImage, LargeObject, open_large_image
from ..tiles.folders import is_zarr, large_images_below
from ..tiles.joining import Joiner, Placed, tiles, to_objects
from ..tiles.parts import check_tiles
from ..tiles.pyramid import Georeference, Region
from .folder import ImageRecord
from .prompts import Corners, Prompt, Prompts
from .sources import FramePlace, ImageItem, Skipped, Source, left_out, read_source, reason

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
    if isinstance(item.path, FramePlace):
        raise ImageError("a frame of a video is not a large image")
    return item.path


def _measured(item: ImageItem, tiling: Tiling) -> LargeItem:
    """Open an image to read its size."""
    path = file_of(item)
    with tiling.open(path) as image:
        item.check_size(image.size)
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
        with self._lock:
            self._trim(0)

    def _trim(self, count: int) -> None:
        for key in [key for key in self._images if not self._readers[key]][: max(0, len(self._images) - count)]:
            self._images.pop(key).close()
            del self._readers[key]


_OPEN = _OpenImages()
close_files = _OPEN.close


_NO_FIT = "it does not fit into one tile: give a larger --overlap or --tile, or a --level with fewer pixels"


def prompts_of_tiles(prompts: Prompts, items: Iterable[TileItem]) -> tuple[Prompts, tuple[TileItem, ...]]:
    """Return the prompts of the tiles, and the tiles with prompts.

    Args:
        prompts: the prompts of the large images, in pixels of the largest level.
    """
    grids: dict[str, list[TileItem]] = defaultdict(list)
    for item in items:
        grids[item.image.name].append(item)
    owned: dict[int, list[Prompt]] = defaultdict(list)
    strays = list(prompts.strays)
    for parts in grids.values():
        grid = _Grid(parts)
        kept, skipped = prompts.of(grid.image, grid.image.size or (0, 0))
        strays += skipped
        for prompt in kept:
            tile = grid.best(prompt)
            if tile is None:
                strays.append(Skipped(grid.image.name, prompt.what, _NO_FIT))
            else:
                owned[tile.id].append(grid.moved(prompt, tile))

    def find(item: ImageItem, _: Size) -> tuple[list[Prompt], list[Skipped]]:
        return list(owned.get(item.id, ())), []

    # An image without prompts keeps one tile, so that the results list it.
    used = tuple(
        item for parts in grids.values() for item in ([part for part in parts if part.id in owned] or parts[:1])
    )
    return Prompts(prompts.categories, find, tuple(strays)), used


class _Grid:
    """The tiles of one image, in rows and columns."""

    def __init__(self, parts: Sequence[TileItem]) -> None:
        self.image: LargeItem = parts[0].image
        width, height = self.image.size or self.image.level
        self._scale = self.image.level[0] / width, self.image.level[1] / height
        self._tiles: Mapping[tuple[int, int], TileItem] = {part.region[:2]: part for part in parts}
        self._lengths = parts[0].size or (0, 0)
        self._starts = [np.unique([part.region[axis] for part in parts]) for axis in (0, 1)]

    def best(self, prompt: Prompt) -> TileItem | None:
        """Return the tile that contains a prompt and shows most around it; None if no tile contains the prompt."""
        x1, y1, x2, y2 = self._box(prompt)
        left, top = self._start(0, x1, x2), self._start(1, y1, y2)
        return None if left is None or top is None else self._tiles[left, top]

    def moved(self, prompt: Prompt, tile: TileItem) -> Prompt:
        """Return a prompt converted to pixels of a tile."""
        (across, down), (left, top, right, bottom) = self._scale, tile.region
        points = tuple(  # rounding may exceed the tile; Prompts.of() clips boxes
            (min(max(0.0, x * across - left), right - left), min(max(0.0, y * down - top), bottom - top), label)
            for x, y, label in prompt.points
        )
        if prompt.box is None:
            return replace(prompt, points=points)
        x1, y1, x2, y2 = prompt.box
        return replace(prompt, box=(x1 * across - left, y1 * down - top, x2 * across - left, y2 * down - top))

    def _box(self, prompt: Prompt) -> Corners:
        """Return the box around a prompt, clipped to the image, in pixels of the level."""
        corners = prompt.box or (
            min(x for x, *_ in prompt.points),
            min(y for _, y, _ in prompt.points),
            max(x for x, *_ in prompt.points),
            max(y for _, y, _ in prompt.points),
        )
        (across, down), (width, height) = self._scale, self.image.level
        x1, y1, x2, y2 = corners
        return max(0, x1 * across), max(0, y1 * down), min(width, x2 * across), min(height, y2 * down)

    def _start(self, axis: int, low: float, high: float) -> int | None:
        starts, length, whole = self._starts[axis], self._lengths[axis], self.image.level[axis]
        before = np.where(starts == 0, np.inf, low - starts)  # a border of the image hides nothing
        after = np.where(starts + length == whole, np.inf, starts + length - high)
        room = np.minimum(before, after)
        room[(low < starts) | (high > starts + length)] = -1
        best = int(np.argmax(room))
        return int(starts[best]) if room[best] >= 0 else None


@dataclass(frozen=True)
class LargeResult:
    """The objects of one large image.

    Args:
        size: width and height of the largest level in pixels.
        georeference: the georeference of a map; None if the file has none.
        objects: the objects, in the order in which their first parts were found. They are made during the iteration.
    """

    id: int
    name: str
    size: Size
    georeference: Georeference | None
    objects: Iterable[LargeObject]
    categories: Sequence[int]


Results = Callable[[], Iterable[LargeResult]]
"""Each call iterates over all results from the start."""


def joined(items: Sequence[ImageItem], records: Iterable[ImageRecord], *, is_search: bool) -> Iterator[LargeResult]:
    """Yield the result of each image, with one in memory at a time.

    The records of tiles are in the order of the run. Only tiles of a search may show the same object, which is joined.
    """
    tiles = {item.id: item for item in items if isinstance(item, TileItem)}
    pairs = ((tiles[record.id], record) for record in records if record.id in tiles)
    for image, group in itertools.groupby(pairs, key=lambda pair: pair[0].image):
        yield _result(image, group, is_search)


def _result(image: LargeItem, group: Iterable[tuple[TileItem, ImageRecord]], is_search: bool) -> LargeResult:
    found: list[tuple[int, Placed]] = []
    joiners: dict[int, Joiner] = defaultdict(Joiner)
    tiling = Tiling()
    for tile, record in group:
        tiling = tile.tiling
        parts = list(_parts(tile, record))
        if not is_search:
            found += parts
            continue
        for category in {category for category, _ in parts}:
            joiners[category].forget(tile.region[1])
            joiners[category].add(tile.region, [part for each, part in parts if each == category])
    for category in sorted(joiners):
        found += [(category, part) for part in joiners[category].joined()]
    size = image.size or image.level
    with _OPEN.image(file_of(image), tiling) as opened:
        georeference = opened.georeference
    objects = to_objects((part for _, part in found), image.level, size)
    return LargeResult(image.id, image.name, size, georeference, objects, [category for category, _ in found])


def _parts(tile: TileItem, record: ImageRecord) -> Iterator[tuple[int, Placed]]:
    """Yield the category and the mask of each object of a tile, except empty masks."""
    for each, mask in record.with_masks():
        if (part := Placed.of(mask, tile.region, each["score"])) is not None:
            yield each["category_id"], part
