"""The georeference of a map: converts pixels to coordinates of its reference system.

Reference: OGC GeoTIFF standard 1.1, sections 7.2 (raster space) and B.6 (ModelTiepoint, ModelPixelScale and
ModelTransformation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..masks.rings import FloatPoints


@dataclass(frozen=True)
class Georeference:
    """The position of an image on Earth.

    Args:
        matrix: a, b, c, d, e, f: pixel x, y is at a x + b y + c, d x + e y + f. Pixel 0, 0 covers 0 to 1.
        epsg: number of the reference system in the EPSG register; None if the file has none.
    """

    matrix: tuple[float, float, float, float, float, float]
    epsg: int | None = None

    def to_map(self, points: FloatPoints) -> FloatPoints:
        """Return points (N,2), x and y in pixels, as coordinates of the reference system."""
        a, b, c, d, e, f = self.matrix
        x, y = np.asarray(points, np.float64).T
        return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)

    def to_pixels(self, points: FloatPoints) -> FloatPoints:
        """Return coordinates (N,2) of the reference system as pixels."""
        a, b, c, d, e, f = self.matrix
        inverse = np.linalg.inv([[a, b], [d, e]])
        pixels: FloatPoints = (np.asarray(points, np.float64) - [c, f]) @ inverse.T
        return pixels

    @property
    def crs(self) -> dict[str, Any] | None:
        """The GeoJSON member ``crs``, which GDAL and QGIS read; None without an EPSG number."""
        if self.epsg is None:
            return None
        return {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{self.epsg}"}}


def georeference_of(tags: Mapping[str, Any]) -> Georeference | None:
    """Return the georeference in the tags of a GeoTIFF file, named as in tifffile; None without one."""
    matrix = _matrix(tags)
    if matrix is None:
        return None
    if int(tags.get("GTRasterTypeGeoKey", 1)) == 2:  # the coordinates refer to the centres of pixels
        a, b, c, d, e, f = matrix
        matrix = (a, b, c - (a + b) / 2, d, e, f - (d + e) / 2)
    epsg = next((int(tags[name]) for name in ("ProjectedCSTypeGeoKey", "GeographicTypeGeoKey") if name in tags), None)
    return Georeference(matrix, None if epsg == 32767 else epsg)  # 32767: defined by the user


def _matrix(tags: Mapping[str, Any]) -> tuple[float, float, float, float, float, float] | None:
    if "ModelTransformation" in tags:
        rows = np.asarray(tags["ModelTransformation"], np.float64).reshape(4, 4)
        return (rows[0, 0], rows[0, 1], rows[0, 3], rows[1, 0], rows[1, 1], rows[1, 3])
    if "ModelPixelScale" in tags and "ModelTiepoint" in tags:
        across, down, *_ = (float(value) for value in tags["ModelPixelScale"])
        column, row, _, x, y, *_ = (float(value) for value in np.ravel(tags["ModelTiepoint"]))
        return (across, 0.0, x - column * across, 0.0, -down, y + row * down)
    return None
