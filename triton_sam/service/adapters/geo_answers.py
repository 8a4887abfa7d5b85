"""Objects of a map as samgeo answers them: GeoJSON, GeoTIFF, PNG, and boxes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import Response
from PIL import Image

from ..._common import strict_json
from ...families.base import Size
from ...masks.formats import multi_polygon
from ...masks.segment import Segment
from ...tiles.geotiff import GeoTags, write_labels
from ..answers import JSON

ONE_VALUE = 255
"""The value of all objects if they need no numbers of their own."""


@dataclass(frozen=True)
class Found:
    """The objects of one image.

    Args:
        segments: the objects. Where two overlap, a pixel of a label map belongs to the later one.
        size: width and height of the image in pixels.
        tags: the place of the map; None: coordinates are pixels, y downwards.
        unique: whether each object has a number of its own, from 1, in label maps.
    """

    segments: Sequence[Segment]
    size: Size
    tags: GeoTags | None
    unique: bool

    @property
    def values(self) -> list[int]:
        """The value of each object in label maps."""
        return [number if self.unique else ONE_VALUE for number in range(1, len(self.segments) + 1)]

    def labels(self) -> npt.NDArray[Any]:
        """Return the label map (H,W), uint8, or uint16 for more than 255 objects."""
        width, height = self.size
        labels = np.zeros((height, width), np.uint8 if max(self.values) < 256 else np.uint16)
        for value, segment in zip(self.values, self.segments, strict=True):
            labels[segment.mask] = value
        return labels

    def placed(self, points: Any) -> Any:
        """Return points (N,2) in pixels as coordinates of the map, as a list."""
        return points if self.tags is None else self.tags.georeference.to_map(np.asarray(points)).tolist()


def answer_of(found: Found, form: str) -> Response:
    """Return the answer in a format. This blocks."""
    return ANSWERS[form](found)


def _geojson(found: Found) -> Response:
    document: dict[str, Any] = {"type": "FeatureCollection"}
    crs = found.tags.georeference.crs if found.tags is not None else None
    if crs is not None:
        document["crs"] = crs
    document["features"] = [
        {
            "type": "Feature",
            "properties": {"value": value, "score": round(segment.score, 5), "area": segment.area},
            "geometry": _geometry(found, segment),
        }
        for value, segment in zip(found.values, found.segments, strict=True)
    ]
    return _json(document)


def _geometry(found: Found, segment: Segment) -> dict[str, Any]:
    polygons = multi_polygon(segment.mask, 0)["coordinates"]
    placed = [[found.placed(ring) for ring in polygon] for polygon in polygons]
    if len(placed) == 1:
        return {"type": "Polygon", "coordinates": placed[0]}
    return {"type": "MultiPolygon", "coordinates": placed}


def _geotiff(found: Found) -> Response:
    return _file(write_labels(found.labels(), found.tags), "image/tiff", "mask.tif")


def _png(found: Found) -> Response:
    buffer = io.BytesIO()
    Image.fromarray(found.labels()).save(buffer, "PNG", compress_level=3)
    return _file(buffer.getvalue(), "image/png", "mask.png")


def _boxes(found: Found) -> Response:
    width, height = found.size
    detections = []
    for number, (value, segment) in enumerate(zip(found.values, found.segments, strict=True), 1):
        x1, y1, x2, y2 = segment.box or (0, 0, 0, 0)
        measures = {"bbox": [x1, y1, x2, y2], "width": x2 - x1, "height": y2 - y1, "score": round(segment.score, 5)}
        detections.append({"id": number, "value": value, **measures})
    sizes = {"image_width": width, "image_height": height, "num_detections": len(detections)}
    return _json({**sizes, "detections": detections})


def _detections(found: Found) -> Response:
    features = []
    for number, (value, segment) in enumerate(zip(found.values, found.segments, strict=True), 1):
        x1, y1, x2, y2 = segment.box or (0, 0, 0, 0)
        ring = found.placed([[x1, y1], [x2, y1], [x2, y2], [x1, y2], [x1, y1]])
        known = {"id": number, "value": value, "score": round(segment.score, 5), "bbox_pixel": [x1, y1, x2, y2]}
        geometry = {"type": "Polygon", "coordinates": [ring]}
        features.append({"type": "Feature", "geometry": geometry, "properties": known})
    document = {"type": "FeatureCollection", "features": features, "num_detections": len(features)}
    if found.tags is not None and found.tags.georeference.epsg is not None:
        document["crs"] = f"EPSG:{found.tags.georeference.epsg}"
    return _json(document)


def _json(document: Any) -> Response:
    return Response(strict_json.dumps(document, separators=(",", ":")), media_type=JSON)


def _file(content: bytes, media_type: str, name: str) -> Response:
    return Response(content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})


ANSWERS: dict[str, Callable[[Found], Response]] = {
    "geojson": _geojson,
    "geotiff": _geotiff,
    "png": _png,
    "json": _boxes,
    "detections": _detections,
}
"""The function that makes the answer, by the name of the format."""
