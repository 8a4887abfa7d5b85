"""Masks as polygons.

Coordinates are x, y in pixels, with the pixel in column c and row r covering c..c+1 and r..r+1, as in COCO annotations
and in SVG: (0, 0) is the outer corner of the first pixel, its centre lies at (0.5, 0.5). The outline runs half-way
between the centres of foreground and background pixels (marching squares), so corners of pixels are cut at 45 degrees.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from .._common.extras import missing
from ..errors import InputError
from .rle import BoolArray, foreground

FloatPoints = npt.NDArray[np.float64]
SMALLEST_SHARE, SMALLEST_AREA = 0.05, 10.0
"""Defaults of main_polygons(): the share of the largest part, and pixels."""


@dataclass(frozen=True, eq=False)
class Polygon:
    """One connected piece of a mask.

    Args:
        exterior: (N,2) float64 x, y of the outer ring; the last point is joined to the first, not repeated.
        holes: rings of the same form, cut out of the exterior. A piece inside a hole is a polygon of its own.
    """

    exterior: FloatPoints
    holes: tuple[FloatPoints, ...] = ()

    @property
    def area(self) -> float:
        """Area in pixels, without the holes."""
        return _area(self.exterior) - sum(map(_area, self.holes))


def mask_to_polygons(mask: npt.ArrayLike, tolerance: float = 0.5) -> list[list[float]]:
    """Turn a mask into COCO's ``segmentation``: one flat ring [x1, y1, x2, y2, ...] for each connected piece.

    COCO's polygons cannot have holes, so holes are filled. To keep them, use trace_polygons() or mask_to_rle().

    Args:
        mask: (H,W), foreground where not 0.
        tolerance: maximum distance, in pixels, between ring and exact outline. Larger values give fewer points.

    Returns:
        Rings of at least three points, largest area first; empty for an empty mask.

    Raises:
        InputError: the mask does not have two dimensions, or the tolerance is negative.
        MissingDependencyError: contourpy is not installed.
    """
    return [polygon.exterior.ravel().tolist() for polygon in trace_polygons(mask, tolerance)]


def trace_polygons(mask: npt.ArrayLike, tolerance: float = 0.5) -> list[Polygon]:
    """Turn a mask into polygons with holes. Arguments, order and errors are those of mask_to_polygons()."""
    pixels = foreground(mask)
    if not tolerance >= 0:
        raise InputError(f"the tolerance must be at least 0 pixels, not {tolerance}")
    try:
        import contourpy
    except ImportError as error:
        raise missing("polygons need", "polygons", error) from error
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    if rows.size == 0:
        return []
    top, left = rows[0], columns[0]
    # Padding closes the rings of masks that touch the border. Padded pixel i has its centre at i - 0.5 of the crop.
    padded = np.pad(pixels[top : rows[-1] + 1, left : columns[-1] + 1], 1).astype(np.float64)
    generator = contourpy.contour_generator(z=padded, fill_type=contourpy.FillType.OuterOffset)
    origin = np.array([left - 0.5, top - 0.5])
    polygons = []
    for points, offsets in zip(*generator.filled(0.5, np.inf), strict=True):
        rings = [_simplify(points[start : end - 1] + origin, tolerance) for start, end in itertools.pairwise(offsets)]
        polygons.append(Polygon(rings[0], tuple(rings[1:])))
    return sorted(polygons, key=lambda polygon: -_area(polygon.exterior))


def main_polygons(
    mask: npt.ArrayLike,
    tolerance: float = 0.5,
    *,
    smallest_share: float = SMALLEST_SHARE,
    smallest_area: float = SMALLEST_AREA,
) -> list[Polygon]:
    """Turn a mask into polygons for a person who edits them: without specks and pinholes.

    Args:
        mask: see trace_polygons().
        tolerance: see trace_polygons().
        smallest_share: parts and holes that are smaller than this share of the largest part are left out, 0..1.
        smallest_area: parts and holes that are smaller than this are left out, pixels.

    Returns:
        Polygons, largest exterior first. The first one is always there, however small it is; an empty mask has none.

    Raises:
        InputError: see trace_polygons().
        MissingDependencyError: contourpy is not installed.
    """
    polygons = trace_polygons(mask, tolerance)
    least = max(smallest_area, smallest_share * max((polygon.area for polygon in polygons), default=0.0))
    kept = [polygon for place, polygon in enumerate(polygons) if place == 0 or polygon.area >= least]
    return [
        Polygon(polygon.exterior, tuple(hole for hole in polygon.holes if _area(hole) >= least)) for polygon in kept
    ]


def fill_polygon(ring: npt.ArrayLike, size: tuple[int, int]) -> BoolArray:
    """Return the mask (H,W) of the pixels whose centres lie within a polygon, or on its outline.

    Args:
        ring: (N,2) x, y in pixels, see the top of this file.
        size: width and height of the image.
    """
    canvas = Image.new("1", size)
    corners = np.asarray(ring, np.float64).reshape(-1, 2) - 0.5  # Pillow counts from the centre of the first pixel
    ImageDraw.Draw(canvas).polygon([(x, y) for x, y in corners.tolist()], fill=1)
    return np.asarray(canvas, bool)


def _area(ring: FloatPoints) -> float:
    x, y = ring.T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def _simplify(ring: FloatPoints, tolerance: float) -> FloatPoints:
    """Drop points of a ring that lie within the tolerance of the rest (Ramer-Douglas-Peucker algorithm)."""
    far = int(np.argmax(((ring - ring[0]) ** 2).sum(axis=1)))
    closed = np.concatenate((ring, ring[:1]))
    keep = np.zeros(len(closed), np.bool_)
    keep[[0, far]] = True
    pending = [(0, far), (far, len(ring))]
    while pending:
        start, end = pending.pop()
        if end - start < 2:
            continue
        distances = _distances(closed[start + 1 : end], closed[start], closed[end])
        farthest = int(np.argmax(distances))
        if distances[farthest] > max(tolerance, 1e-9):
            middle = start + 1 + farthest
            keep[middle] = True
            pending += [(start, middle), (middle, end)]
    simple: FloatPoints = ring[keep[:-1]]
    if len(simple) >= 3:
        return simple
    return _simplify(ring, 0) if tolerance > 0 else ring  # a piece thinner than the tolerance keeps its exact ring


def _distances(points: FloatPoints, start: FloatPoints, end: FloatPoints) -> FloatPoints:
    """Return the distances of points (N,2) from the segment between start and end."""
    along = end - start
    length = max(float(along @ along), 1e-12)
    position = np.clip((points - start) @ along / length, 0, 1)
    offset = points - start - position[:, None] * along
    return np.asarray(np.hypot(offset[:, 0], offset[:, 1]))
