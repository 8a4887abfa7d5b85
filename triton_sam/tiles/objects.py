"""An object in a large image: a mask of a part, and its shape in pixels of the whole image or map coordinates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..masks import mask_to_box
from ..masks import polygons as formats
from ..masks.polygons import Polygon, Trace, main_polygons, trace_polygons
from ..masks.rle import BoolArray
from .georeference import Georeference
from .pyramid import Region, Window

TOLERANCE = 0.5


@dataclass(frozen=True, eq=False)
class LargeObject:
    """An object.

    Args:
        mask: bool (h,w) of a part of the image. It has fewer pixels than the part if a smaller level was used.
        region: the part, in pixels of the whole image.
        is_cut: whether the mask reaches a border of the part inside the image, so that it may be incomplete.
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
    tolerance: float = TOLERANCE,
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
    document: dict[str, Any] = {"type": "FeatureCollection"}
    if georeference is not None and georeference.crs is not None:
        document["crs"] = georeference.crs
    found = (each for each in objects if each.box is not None)
    document["features"] = [to_feature(each, georeference, tolerance, trace=trace) for each in found]
    return document


def to_feature(
    each: LargeObject,
    georeference: Georeference | None = None,
    tolerance: float = TOLERANCE,
    *,
    trace: Trace = main_polygons,
    label: str = "",
    **properties: Any,
) -> dict[str, Any]:
    """Return an object as a GeoJSON Feature, see to_geojson()."""

    def ring(points: Any) -> list[list[float]]:
        placed: list[list[float]] = (points if georeference is None else georeference.to_map(points)).tolist()
        return [*placed, placed[0]]

    polygons = each.polygons(tolerance, trace=trace)
    coordinates = [[ring(one) for one in (polygon.exterior, *polygon.holes)] for polygon in polygons]
    known = {**properties, "score": round(each.score, 5), "area": round(each.area, 2)}
    return formats.to_feature({"type": "MultiPolygon", "coordinates": coordinates}, label, known)
