"""The objects of a large image, and how those that overlapping tiles show are joined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..families.base import Size
from ..inputs.header import say_once
from ..masks import polygons as formats
from ..masks.boxes import Box, mask_to_box
from ..masks.polygons import Polygon, Trace, main_polygons, trace_polygons
from ..masks.rle import BoolArray
from .pyramid import Georeference, Region, Window

TOLERANCE = 0.5


@dataclass(frozen=True, eq=False)
class LargeObject:
    """An object.

    Args:
        mask: bool (h,w) of a part of the image. It has fewer pixels than the part if a smaller level was used, or if
            the object was joined from tiles and spans more than MAX_JOINED pixels.
        region: the part, in pixels of the whole image.
        is_cut: whether the mask reaches a border of the part inside the image, so that it may be incomplete.
        object_index: index of the prompt or, in a search for all objects, of the object, from 0.
        candidate: index of the candidate for that prompt, from 0.
    """

    mask: BoolArray
    region: Region
    score: float
    is_cut: bool = False
    object_index: int = 0
    candidate: int = 0

    def __repr__(self) -> str:
        return f"LargeObject(box={self.box}, {self.area:.0f} px, score={self.score:.2f})"

    @property
    def scale(self) -> tuple[float, float]:
        """Pixels of the whole image per pixel of the mask, in x and y."""
        x1, y1, x2, y2 = self.region
        return (x2 - x1) / self.mask.shape[1], (y2 - y1) / self.mask.shape[0]

    @property
    def area(self) -> float:
        """Area in pixels of the whole image."""
        across, down = self.scale
        return float(np.count_nonzero(self.mask)) * across * down

    @property
    def box(self) -> tuple[float, float, float, float] | None:
        """Tight box x1, y1, x2, y2 in pixels of the whole image; None if the mask is empty."""
        found = mask_to_box(self.mask)
        if found is None:
            return None
        (across, down), (left, top) = self.scale, self.region[:2]
        return left + found[0] * across, top + found[1] * down, left + found[2] * across, top + found[3] * down

    def within(self, window: Window) -> BoolArray:
        """Return the mask in the pixels of a window, bool (h,w), sampled at their centres."""
        height, width = window.pixels.shape[:2]
        x = window.outside(np.stack([np.arange(width) + 0.5, np.zeros(width)], axis=1))[:, 0]
        y = window.outside(np.stack([np.zeros(height), np.arange(height) + 0.5], axis=1))[:, 1]
        (across, down), (left, top) = self.scale, self.region[:2]
        columns = np.floor((x - left) / across).astype(int)
        rows = np.floor((y - top) / down).astype(int)
        in_columns = (columns >= 0) & (columns < self.mask.shape[1])
        in_rows = (rows >= 0) & (rows < self.mask.shape[0])
        result = np.zeros((height, width), bool)
        result[np.ix_(in_rows, in_columns)] = self.mask[np.ix_(rows[in_rows], columns[in_columns])]
        return result

    def polygons(self, tolerance: float = TOLERANCE, *, trace: Trace = trace_polygons) -> list[Polygon]:
        """Return the outline in pixels of the whole image, with holes."""
        origin = np.array(self.region[:2], np.float64)
        return [
            Polygon(each.exterior * self.scale + origin, tuple(hole * self.scale + origin for hole in each.holes))
            for each in trace(self.mask, tolerance)
        ]


def to_geojson(
    objects: Iterable[LargeObject],
    georeference: Georeference | None = None,
    *,
    trace: Trace = main_polygons,
) -> dict[str, Any]:
    """Return objects as a FeatureCollection, which QuPath imports as annotations and GIS programs as a layer.

    Args:
        objects: the objects. Objects with empty masks are left out.
        georeference: the georeference of a map, for coordinates in its reference system, which is in the member
            ``crs``. None: coordinates are pixels of the whole image, y downwards.
        trace: traces the outlines. The default drops specks and pinholes; trace_polygons() keeps them.
    """
    document: dict[str, Any] = {"type": "FeatureCollection", **crs_member(georeference)}
    found = (each for each in objects if each.box is not None)
    document["features"] = [to_feature(each, georeference, trace=trace) for each in found]
    return document


def crs_member(georeference: Georeference | None) -> dict[str, Any]:
    """Return the member ``crs`` of a FeatureCollection; {} for coordinates in pixels, or without an EPSG number."""
    crs = georeference and georeference.crs
    if georeference is not None and crs is None:
        say_once(
            "crs",
            "The image's reference system has no EPSG number, so GeoJSON cannot name it: assign it to the layer in "
            "your GIS program, which takes the coordinates for degrees otherwise.",
        )
    return {"crs": crs} if crs else {}


def to_feature(
    each: LargeObject,
    georeference: Georeference | None = None,
    *,
    trace: Trace = main_polygons,
    label: str = "",
    **properties: Any,
) -> dict[str, Any]:
    """Return an object as a GeoJSON Feature, see to_geojson()."""
    polygons = each.polygons(trace=trace)
    if georeference is not None:
        place = georeference.to_map
        polygons = [Polygon(place(one.exterior), tuple(map(place, one.holes))) for one in polygons]
    known = {**properties, "score": round(each.score, 5), "area": round(each.area, 2)}
    return formats.to_feature(formats.to_geometry(polygons), label, known)


SAME = 0.5
"""Two masks show the same object if their IoU in the overlap of the tiles is at least this."""
MAX_JOINED = 1 << 26
"""Maximum number of pixels of a joined mask. Tracing its outline takes about 30 bytes per pixel, 2 GB."""


def tiles(size: Size, side: int, overlap: int) -> Iterator[Region]:
    """Yield tiles that cover an image, row by row. The last tiles are shifted inwards to have the full size."""
    for top in _starts(size[1], side, overlap):
        for left in _starts(size[0], side, overlap):
            yield left, top, min(size[0], left + side), min(size[1], top + side)


class Placed:
    """A mask, cropped to its box in pixels of a level."""

    def __init__(self, bits: BoolArray, box: Box, score: float) -> None:
        self._packed = np.packbits(bits)
        self._shape = bits.shape
        self.box = box
        self.area = int(np.count_nonzero(bits))
        self.score = score

    @classmethod
    def of(cls, mask: BoolArray, tile: Box, score: float) -> Placed | None:
        """Crop the mask (H,W) of an object in a tile, whose box is in pixels of the level; None if it is empty."""
        box = mask_to_box(mask)
        if box is None:
            return None
        x1, y1, x2, y2 = box
        return cls(mask[y1:y2, x1:x2], (tile[0] + x1, tile[1] + y1, tile[0] + x2, tile[1] + y2), score)

    @property
    def bits(self) -> BoolArray:
        """The mask inside its box, bool (h,w)."""
        height, width = self._shape
        return np.unpackbits(self._packed, count=height * width).astype(bool).reshape(height, width)

    def within(self, box: Box) -> BoolArray:
        """Return the mask inside a box, bool (h,w)."""
        result = np.zeros((box[3] - box[1], box[2] - box[0]), bool)
        shared = _common(self.box, box)
        if shared is not None:
            x1, y1, x2, y2 = shared
            part = self.bits[y1 - self.box[1] : y2 - self.box[1], x1 - self.box[0] : x2 - self.box[0]]
            result[y1 - box[1] : y2 - box[1], x1 - box[0] : x2 - box[0]] = part
        return result

    def iou(self, other: Placed, shared: Box) -> float:
        """Return the IoU of two masks inside a box."""
        if _common(self.box, other.box) is None:
            return 0.0
        near = _common(_hull((self, other)), shared)
        if near is None:
            return 0.0
        mine, theirs = self.within(near), other.within(near)
        union = np.count_nonzero(mine | theirs)
        return float(np.count_nonzero(mine & theirs) / union) if union else 0.0


class Joiner:
    """Collects the objects of tiles and joins those that two tiles show.

    All masks must have the same scale, and positions in whole pixels of a level. Objects of one tile are never joined,
    such as a cell and its nucleus.
    """

    def __init__(self) -> None:
        self._objects: list[Placed] = []
        self._parents: list[int] = []
        self._shown_by: list[set[Box]] = []
        """The tiles of an object and of those joined to it, by the number of the group's first object."""
        self._tiles: list[tuple[Box, list[int]]] = []

    def add(self, tile: Box, found: Sequence[Placed]) -> None:
        """Add the objects of a tile, whose box is in pixels of the level."""
        numbers = []
        for each in found:
            numbers.append(len(self._objects))
            self._parents.append(len(self._objects))
            self._shown_by.append({tile})
            self._objects.append(each)
        for other, theirs in self._tiles:
            shared = _common(tile, other)
            if shared is not None:
                for *_, ours, number in sorted(self._alike(numbers, theirs, shared), reverse=True):
                    self._join(ours, number)
        self._tiles.append((tile, numbers))

    def _alike(
        self, numbers: Sequence[int], theirs: Sequence[int], shared: Box
    ) -> Iterator[tuple[float, int, int, int]]:
        """Yield the IoU, the common area and the numbers of two objects that two tiles show alike in their overlap."""
        near = [number for number in theirs if _common(self._objects[number].box, shared)]
        for ours in numbers:
            for number in near:
                one, other = self._objects[ours], self._objects[number]
                if (iou := one.iou(other, shared)) >= SAME:
                    yield iou, one.area + other.area, ours, number

    def _join(self, one: int, other: int) -> None:
        one, other = self._root(one), self._root(other)
        if one != other and self._shown_by[one].isdisjoint(self._shown_by[other]):
            self._parents[one] = other
            self._shown_by[other] |= self._shown_by[one]

    def forget(self, bottom: int) -> None:
        """Drop tiles that end above a row, which no further tile overlaps."""
        self._tiles = [(tile, numbers) for tile, numbers in self._tiles if tile[3] > bottom]

    def joined(self) -> list[Placed]:
        """Return the objects in the order in which their first parts were added."""
        groups: dict[int, list[Placed]] = {}
        for number, each in enumerate(self._objects):
            groups.setdefault(self._root(number), []).append(each)
        return [_union(group) for group in groups.values()]

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = number = self._parents[self._parents[number]]
        return number


def _union(group: Sequence[Placed]) -> Placed:
    """Join masks to one, of every n-th row and column if it would exceed MAX_JOINED pixels."""
    if len(group) == 1:
        return group[0]
    x1, y1, x2, y2 = box = _hull(group)
    step = math.ceil(math.sqrt((x2 - x1) * (y2 - y1) / MAX_JOINED))
    if step > 1:
        say_once(
            "joined",
            f"An object spans {x2 - x1} x {y2 - y1} pixels, and its mask is kept at 1/{step} of the resolution. For an "
            "exact outline, search a smaller level.",
        )
    bits = np.zeros((math.ceil((y2 - y1) / step), math.ceil((x2 - x1) / step)), bool)
    for each in group:
        left, top = each.box[0] - x1, each.box[1] - y1
        part = each.bits[-top % step :: step, -left % step :: step]
        row, column = math.ceil(top / step), math.ceil(left / step)
        bits[row : row + part.shape[0], column : column + part.shape[1]] |= part
    score = np.average([each.score for each in group], weights=[each.area for each in group])
    return Placed(bits, box, float(score))


def _hull(group: Sequence[Placed]) -> Box:
    corners = np.array([each.box for each in group])
    x1, y1 = corners[:, :2].min(axis=0).tolist()
    x2, y2 = corners[:, 2:].max(axis=0).tolist()
    return x1, y1, x2, y2


def _common(one: Box, other: Box) -> Box | None:
    box = max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])
    return box if box[0] < box[2] and box[1] < box[3] else None


def _starts(length: int, side: int, overlap: int) -> list[int]:
    if length <= side:
        return [0]
    count = -int(-(length - overlap) // (side - overlap))
    return [round(number * (length - side) / (count - 1)) for number in range(count)]


def to_objects(found: Iterable[Placed], level: Size, image: Size) -> Iterator[LargeObject]:
    """Yield objects in pixels of the whole image, numbered from 0, because all masks may exceed the memory."""
    across, down = image[0] / level[0], image[1] / level[1]
    for number, each in enumerate(found):
        x1, y1, x2, y2 = each.box
        region = (round(x1 * across), round(y1 * down), round(x2 * across), round(y2 * down))
        yield LargeObject(each.bits, region, each.score, object_index=number)
