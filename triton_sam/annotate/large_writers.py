"""The table of output formats for large images. The formats hold outlines, because masks do not fit into memory."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._common import strict_json
from .._common.extras import missing
from .._common.files import atomic_path
from ..inputs.header import say_once
from ..masks.boxes import corner_and_size
from ..masks.polygons import Trace
from ..masks.rings import FloatPoints
from ..tiles.joining import crs_member, to_feature
from .image_writers import Categories, check_polygons, plain, with_stems
from .large import LargeResult, Results
from .sources import Skipped
from .writers import Writer, write_pieces

_FIXED_DATE = "2000-01-01T00:00:00.000Z"
"""The date in every GeoPackage, so that equal results are equal files."""
_WKB_POLYGON, _WKB_MULTI_POLYGON = 3, 6


def write_geojson(folder: Path, results: Results, categories: Categories, trace: Trace) -> list[Skipped]:
    """Write a FeatureCollection for each image below `geojson`, in map coordinates if the image is georeferenced.

    Map coordinates are in the reference system of the member ``crs``. Otherwise, coordinates are pixels of the largest
    level, y downwards.
    """
    left: list[Skipped] = []
    for stem, result in with_stems(results, left):
        with _created(folder, f"geojson/{stem}.geojson") as temporary, temporary.open("w", encoding="utf-8") as file:
            head = _json({"type": "FeatureCollection", **crs_member(result.georeference)})
            file.write(head.removesuffix("}") + ',"features":[')
            for number, feature in enumerate(_features(result, categories, trace)):
                file.write(("," if number else "") + _json(feature))
            file.write("]}\n")
    return left


def write_gpkg(folder: Path, results: Results, categories: Categories, trace: Trace) -> list[Skipped]:
    """Write a GeoPackage for each image below `gpkg`, with the layer `objects`; coordinates as in write_geojson().

    Reference: OGC GeoPackage 1.3. pyogrio (GDAL) writes the file.
    """
    pyogrio, raw = _pyogrio()
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": _FIXED_DATE})
    left: list[Skipped] = []
    for stem, result in with_stems(results, left):
        features = list(_features(result, categories, trace))
        epsg = result.georeference.epsg if result.georeference else None
        with _created(folder, f"gpkg/{stem}.gpkg") as temporary, warnings.catch_warnings():
            temporary.unlink()  # GDAL would treat the empty file as a damaged GeoPackage
            warnings.filterwarnings("ignore", ".*'crs' was not provided", UserWarning)  # slides have no georeference
            write = partial(
                raw.write,
                temporary,
                np.array([_wkb(each["geometry"]["coordinates"]) for each in features], object),
                _columns(features),
                np.array(["category", "category_id", "score", "area"], object),
                layer="objects",
                driver="GPKG",
                geometry_type="MultiPolygon",
            )
            try:
                write(crs=None if epsg is None else f"EPSG:{epsg}")
            except pyogrio.errors.CRSError:
                say_once("crs", f"PROJ does not know EPSG:{epsg}, so the GeoPackage names no reference system.")
                write(crs=None)
    return left


def write_coco_polygons(folder: Path, results: Results, categories: Categories, trace: Trace) -> list[Skipped]:
    """Write `coco_polygons.json`: outlines in pixels of the largest level; holes are filled."""
    write_pieces(folder / "coco_polygons.json", results, lambda result: _objects(result, trace), categories)
    return []


def _objects(result: LargeResult, trace: Trace) -> Iterator[dict[str, Any]]:
    for each, category in zip(result.objects, result.categories, strict=True):
        yield {
            "category_id": category,
            "score": round(each.score, 5),
            "area": round(each.area, 2),
            "bbox": [round(value, 2) for value in corner_and_size(each.box)],
            "segmentation": [polygon.exterior.ravel().tolist() for polygon in each.polygons(trace=trace)],
        }


def _features(result: LargeResult, categories: Categories, trace: Trace) -> Iterator[dict[str, Any]]:
    for each, category in zip(result.objects, result.categories, strict=True):
        name = categories[category]
        yield to_feature(each, result.georeference, trace=trace, label=name, category=name, category_id=category)


def _columns(features: list[dict[str, Any]]) -> list[Any]:
    """Return the fields of a layer, in the order of write_gpkg()."""
    properties = [each["properties"] for each in features]
    return [
        np.array([plain(each["category"]) for each in properties], object),
        np.array([each["category_id"] for each in properties], np.int64),
        np.array([each["score"] for each in properties], np.float64),
        np.array([each["area"] for each in properties], np.float64),
    ]


def _wkb(polygons: Any) -> bytes:
    """Return the coordinates of a MultiPolygon as well-known binary. Reference: OGC Simple Feature Access 1.2.1, 8."""
    content = [struct.pack("<BII", 1, _WKB_MULTI_POLYGON, len(polygons))]
    for rings in polygons:
        content.append(struct.pack("<BII", 1, _WKB_POLYGON, len(rings)))
        for ring in rings:
            points: FloatPoints = np.asarray(ring, "<f8")
            content += [struct.pack("<I", len(points)), points.tobytes()]
    return b"".join(content)


def _created(folder: Path, name: str) -> Any:
    """Return atomic_path() of a file below a folder, and create the folders on its path."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    return atomic_path(folder / name)


def _json(value: Any) -> str:
    return strict_json.dumps(value, separators=(",", ":"))


def _pyogrio() -> tuple[Any, Any]:
    check_polygons()
    try:
        import pyogrio
        from pyogrio import raw
    except ImportError as error:
        raise missing("a GeoPackage needs", "gpkg", error) from error
    return pyogrio, raw


_ROWS = (
    Writer("geojson", "GeoJSON for each image, on the map if it is one", write_geojson, check_polygons),
    Writer("gpkg", "GeoPackage for each image, the same objects", write_gpkg, _pyogrio),
    Writer("coco-polygons", "one COCO file, outlines in pixels", write_coco_polygons, check_polygons),
)
LARGE_WRITERS: dict[str, Writer] = {writer.name: writer for writer in _ROWS}
