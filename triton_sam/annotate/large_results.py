"""The objects of large images, joined from the records of their tiles."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..families.base import Size
from ..tiles import LargeObject, open_large_image
from ..tiles.georeference import Georeference
from ..tiles.joining import Joiner, Placed, to_object
from .large_sources import LargeItem, TileItem, file_of
from .records import ImageRecord
from .sources import ImageItem


@dataclass(frozen=True)
class LargeResult:
    """The objects of one large image.

    Args:
        size: width and height of the largest level in pixels.
        georeference: the georeference of a map; None if the file has none.
        objects: the objects, in the order in which their first parts were found.
    """

    id: int
    name: str
    size: Size
    georeference: Georeference | None
    objects: Sequence[LargeObject]
    categories: Sequence[int]


Results = Callable[[], Iterable[LargeResult]]
"""Each call iterates over all results from the start."""


def joined(items: Sequence[ImageItem], records: Iterable[ImageRecord], *, is_search: bool) -> Iterator[LargeResult]:
    """Yield the result of each image, with one in memory at a time.

    Args:
        records: the records of tiles in the order of the run. Tiles with an error have no objects.
        is_search: whether each tile was searched, so that two tiles may show the same object. Objects of prompts are
            not joined.
    """
    tiles = {item.id: item for item in items if isinstance(item, TileItem)}
    pairs = ((tiles[record.id], record) for record in records if record.id in tiles)
    for image, group in itertools.groupby(pairs, key=lambda pair: pair[0].image):
        yield _result(image, group, is_search)


def _result(image: LargeItem, group: Iterable[tuple[TileItem, ImageRecord]], is_search: bool) -> LargeResult:
    found: list[tuple[int, Placed]] = []
    joiners: dict[int, Joiner] = defaultdict(Joiner)
    channels: tuple[int, ...] = (0, 1, 2)
    for tile, record in group:
        channels = tile.tiling.channels
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
    with open_large_image(file_of(image), channels=channels) as opened:
        georeference = opened.georeference
    objects = [to_object(part, image.level, size) for _, part in found]
    return LargeResult(image.id, image.name, size, georeference, objects, [category for category, _ in found])


def _parts(tile: TileItem, record: ImageRecord) -> Iterator[tuple[int, Placed]]:
    """Yield the category and the mask of each object of a tile, except empty masks."""
    for each, mask in zip(record.objects, record.masks(), strict=True):
        if (part := Placed.of(mask, tile.region, each["score"])) is not None:
            yield each["category_id"], part
