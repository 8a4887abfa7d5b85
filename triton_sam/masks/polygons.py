"""Converts masks to polygons, and polygons to masks.

Coordinates are x, y in pixels. The pixel in column c and row r covers c..c+1 and r..r+1, as in COCO annotations and in
SVG: (0, 0) is the outer corner of the first pixel, and (0.5, 0.5) its centre. The exact outline runs half-way between
the centres of foreground and background pixels (marching squares), so corners of pixels are cut at 45 degrees. A
polygon contains the pixels whose centres are inside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.extras import missing
from ..errors import InputError
from ..families.base import Size
from .boxes import mask_to_box
from .rings import EXACT, FloatPoints, area_of, bridged, form_a_polygon, simplified
from .rle import BoolArray, IntArray, foreground

SMALLEST_SHARE, SMALLEST_AREA = 0.01, 10.0
"""Defaults of main_polygons(): a share of the largest part, and an area in pixels."""
_CROSSINGS_AT_ONCE = 1 << 20
"""Rows per band when outlines are filled. Bands limit the memory for polygons with many corners."""


@dataclass(frozen=True, eq=False)
class Polygon:
    """One connected piece of a mask.

    Args:
        exterior: (N,2) float64 x, y of the outer ring, implicitly closed: the first point is not repeated.
        holes: rings of the same form, cut out of the exterior. A piece inside a hole is a separate polygon.
    """

    exterior: FloatPoints
    holes: tuple[FloatPoints, ...] = ()

    @property
    def area(self) -> float:
        """Area in pixels, without the holes."""
        return area_of(self.exterior) - sum(map(area_of, self.holes))


Trace = Callable[[BoolArray, float], list[Polygon]]
"""Converts a mask to polygons within a tolerance: trace_polygons(), or main_polygons() without the smallest parts."""


def mask_to_polygons(mask: npt.ArrayLike, tolerance: float = EXACT) -> list[list[float]]:
    """Convert a mask to COCO's ``segmentation``: one flat ring [x1, y1, x2, y2, ...] for each connected piece.

    COCO's polygons cannot have holes, so holes are filled. To keep holes, use trace_polygons() or mask_to_rle().

    Args:
        mask: (H,W), foreground where not 0.
        tolerance: see trace_polygons().

    Returns:
        Rings of at least three points, largest area first; empty for an empty mask.

    Raises:
        InputError: the mask does not have two dimensions, or the tolerance is negative.
        MissingDependencyError: contourpy is not installed.
    """
    return [polygon.exterior.ravel().tolist() for polygon in trace_polygons(mask, tolerance)]


def trace_polygons(mask: npt.ArrayLike, tolerance: float = EXACT) -> list[Polygon]:
    """Convert a mask to polygons with holes.

    With a tolerance of at most 0.5, the default, fill_polygons() restores the mask exactly. The rings of a polygon
    never cross themselves or each other.

    Args:
        mask: (H,W), foreground where not 0. Pieces that only meet at a corner are separate polygons.
        tolerance: maximum distance, in pixels, between rings and exact outline. Larger values give fewer points.

    Returns:
        Polygons whose rings have at least three points, largest exterior first; empty for an empty mask.

    Raises:
        InputError: the mask does not have two dimensions, or the tolerance is negative.
        MissingDependencyError: contourpy is not installed.
    """
    return Outlines(mask).all(tolerance)


def main_polygons(
    mask: npt.ArrayLike,
    tolerance: float = EXACT,
    *,
    smallest_share: float = SMALLEST_SHARE,
    smallest_area: float = SMALLEST_AREA,
) -> list[Polygon]:
    """Convert a mask to polygons for manual editing, without specks and pinholes.

    Args:
        mask: see trace_polygons().
        tolerance: see trace_polygons().
        smallest_share: parts and holes smaller than this share of the largest part are left out, 0..1.
        smallest_area: parts and holes smaller than this are left out, pixels.

    Returns:
        Polygons, largest exterior first; empty for an empty mask. The first one is kept, however small it is.

    Raises:
        InputError: see trace_polygons().
        MissingDependencyError: contourpy is not installed.
    """
    return Outlines(mask).main(tolerance, smallest_share, smallest_area)


class Outlines:
    """The exact outlines of a mask, for polygons of several tolerances.

    Raises:
        InputError: the mask does not have two dimensions.
        MissingDependencyError: contourpy is not installed.
    """

    def __init__(self, mask: npt.ArrayLike) -> None:
        self._rings = _exact_outlines(mask)

    def all(self, tolerance: float) -> list[Polygon]:
        """Return the polygons of trace_polygons()."""
        _check(tolerance)
        return [_polygon(rings, tolerance) for rings in self._rings]

    def main(self, tolerance: float, smallest_share: float, smallest_area: float) -> list[Polygon]:
        """Return the polygons of main_polygons()."""
        _check(tolerance)
        # An exact outline removes an eighth of a pixel at outer corners and adds it at inner ones, of which there are
        # four fewer.
        areas = [
            [area_of(ring) + (-0.5 if number else 0.5) for number, ring in enumerate(rings)] for rings in self._rings
        ]
        least = max(smallest_area, smallest_share * max((first - sum(holes) for first, *holes in areas), default=0))
        kept = []
        for place, (rings, (first, *holes)) in enumerate(zip(self._rings, areas, strict=True)):
            if place == 0 or first - sum(holes) >= least:
                large = [hole for hole, area in zip(rings[1:], holes, strict=True) if area >= least]
                kept.append(_polygon([rings[0], *large], tolerance))
        return kept


def joined_ring(polygons: Sequence[Polygon]) -> FloatPoints:
    """Join polygons to one ring, for formats with one ring per object, such as YOLO.

    Zero-width bridges join holes and further polygons to the first one: the ring goes there and back on the same line.
    fill_polygons() thus returns the same mask for the ring as for the polygons.

    Args:
        polygons: at least one.

    Returns:
        (N,2) x, y in pixels.
    """
    first, *others = [ring for polygon in polygons for ring in (polygon.exterior, *polygon.holes)]
    for ring in others:
        first = bridged(first, ring)
    return first


def fill_polygons(polygons: Iterable[Polygon | npt.ArrayLike], size: Size) -> BoolArray:
    """Return the mask, bool (H,W), of the pixels whose centres are inside any of the polygons.

    This is the inverse of trace_polygons() and, for masks without holes, of mask_to_polygons(). A centre exactly on a
    left or upper edge is inside, and a centre on a right or lower edge is outside, so polygons with a common edge never
    share a pixel. If a ring crosses itself, the even-odd rule applies.

    Args:
        polygons: polygons with holes, or rings without: (N,2) x, y in pixels, or flat [x1, y1, x2, y2, ...].
        size: width and height of the mask.

    Raises:
        InputError: a ring does not consist of pairs of finite numbers.
    """
    mask = np.zeros(size[::-1], np.bool_)
    for polygon in polygons:
        rings = (polygon.exterior, *polygon.holes) if isinstance(polygon, Polygon) else (_ring(polygon),)
        for rows, columns, filled in _filled(rings, size):
            mask[rows, columns] |= filled
    return mask


def to_geometry(polygons: Iterable[Polygon]) -> dict[str, Any]:
    """Return polygons as a GeoJSON MultiPolygon."""
    rings = [[_closed(ring) for ring in (polygon.exterior, *polygon.holes)] for polygon in polygons]
    return {"type": "MultiPolygon", "coordinates": rings}


def to_feature(geometry: dict[str, Any], label: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a GeoJSON Feature, which QuPath imports as an annotation with a class.

    Reference: QuPath's QuPathTypeAdapters.java.

    Args:
        geometry: see to_geometry().
        label: name of the class; "" for no class.
        properties: further properties.
    """
    known: dict[str, Any] = {"objectType": "annotation", **({"classification": {"name": label}} if label else {})}
    return {"type": "Feature", "geometry": geometry, "properties": {**known, **properties}}


def _ring(points: npt.ArrayLike) -> FloatPoints:
    try:
        ring = np.asarray(points, np.float64).reshape(-1, 2)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError("a polygon must be pairs of numbers x, y") from error
    if not np.isfinite(ring).all():
        raise InputError("a polygon holds NaN or infinity")
    return ring


def _closed(points: FloatPoints) -> list[list[float]]:
    ring: list[list[float]] = points.tolist()
    return [*ring, ring[0]]


def _filled(rings: Sequence[FloatPoints], size: Size) -> Iterator[tuple[slice, slice, BoolArray]]:
    """Yield the pixels inside rings by the even-odd rule in bands: the rows, the columns and the pixels."""
    starts, ends = np.concatenate(rings), np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    if not len(starts):
        return
    upwards = starts[:, 1] > ends[:, 1]  # all edges run down, so that a common edge is identical in both polygons
    starts[upwards], ends[upwards] = ends[upwards], starts[upwards]
    sides = np.concatenate((starts[:, 0], ends[:, 0]))
    left, right = (int(_first_centre(each, size[0])) for each in (sides.min(), sides.max()))
    first, last = (_first_centre(each[:, 1], size[1]) for each in (starts, ends))
    width, top, bottom = right - left, int(first.min()), int(last.max())
    if not width:
        return
    step = max(1, _CROSSINGS_AT_ONCE // len(starts))
    for begin in range(top, bottom, step):
        end = min(begin + step, bottom)
        upper, lower = np.clip(first, begin, end), np.clip(last, begin, end)
        counts = lower - upper
        edges = np.repeat(np.arange(len(starts)), counts)
        rows = np.arange(len(edges)) - (np.cumsum(counts) - counts - upper)[edges]
        (x1, y1), (x2, y2) = starts[edges].T, ends[edges].T
        x = x1 + (x2 - x1) * ((rows + 0.5 - y1) / (y2 - y1))
        columns = np.clip(_first_centre(x, right) - left, 0, width)
        # Pixels change sides at each crossing. The number of crossings per row is even, so the next row begins outside.
        changes = np.sort((rows - begin) * width + columns)
        runs = np.diff(np.concatenate(([0], changes, [(end - begin) * width])))
        filled = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(end - begin, width)
        yield slice(begin, end), slice(left, right), filled


def _first_centre(coordinates: npt.ArrayLike, end: int) -> IntArray:
    """Return the first pixels whose centres are at or beyond the coordinates, 0..end."""
    return np.asarray(np.clip(np.ceil(np.asarray(coordinates) - 0.5), 0, end), np.int64)


def _check(tolerance: float) -> None:
    if not tolerance >= 0:
        raise InputError(f"the tolerance must be at least 0 pixels, not {tolerance}")


def _exact_outlines(mask: npt.ArrayLike) -> list[list[FloatPoints]]:
    """Return the exact rings of each piece, outer ring first; the piece with the largest outer ring is first."""
    pixels = foreground(mask)
    try:
        import contourpy
    except ImportError as error:
        raise missing("polygons need", "polygons", error) from error
    box = mask_to_box(pixels)
    if box is None:
        return []
    left, top, right, bottom = box
    # Padding closes the rings of masks that touch the border. Padded pixel i has its centre at i - 0.5 of the crop.
    padded = np.pad(pixels[top:bottom, left:right], 1).astype(np.float64)
    rows, columns = map(np.arange, map(float, padded.shape))
    x, y = np.meshgrid(columns, rows)
    # contour_generator() would call this class too, but looks for NaN first, which takes half of the time.
    generator = contourpy.SerialContourGenerator(
        x,
        y,
        padded,
        np.zeros((), np.bool_),  # no mask
        corner_mask=True,
        line_type=contourpy.LineType.Separate,
        fill_type=contourpy.FillType.OuterOffset,
        quad_as_tri=False,
        z_interp=contourpy.ZInterp.Linear,
    )
    corner = np.array([left - 1, top - 1])
    outlines = [
        [points[start : end - 1] + corner for start, end in itertools.pairwise(offsets)]
        for points, offsets in zip(*generator.filled(0.5, np.inf), strict=True)
    ]
    return sorted(outlines, key=lambda rings: -area_of(rings[0]))


def _polygon(rings: list[FloatPoints], tolerance: float) -> Polygon:
    """Simplify exact rings, with a smaller tolerance if they would cross; move the origin to the outer corner."""
    simple = [simplified(ring, tolerance) for ring in rings]
    while tolerance > EXACT and not form_a_polygon(simple):
        tolerance = max(tolerance / 4, EXACT)
        simple = [simplified(ring, tolerance) for ring in rings]
    exterior, *holes = (ring + 0.5 for ring in simple)
    return Polygon(exterior, tuple(holes))
