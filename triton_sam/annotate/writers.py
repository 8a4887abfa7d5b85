"""The table of output formats. To add a format, write a function that writes its files and add a row.

Writers read the records in the order of the run, so that interruptions do not change the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..masks.polygons import Trace
from ._writing import Categories, check_polygons
from .coco_writer import write_coco, write_coco_polygons
from .image_writers import write_davis, write_geojson, write_labelme, write_labels, write_voc, write_yolo
from .parquet_writer import import_pyarrow, write_parquet
from .sources import Skipped


@dataclass(frozen=True)
class Writer:
    """One output format.

    Args:
        write: writes the files below a folder from the records of images, or the results of large images.
        check: raises MissingDependencyError before the run if a package of the format is missing.
    """

    name: str
    meaning: str
    write: Callable[[Path, Callable[[], Iterable[Any]], Categories, Trace], list[Skipped]]
    check: Callable[[], object] = lambda: None


_ROWS = (
    Writer("coco", "one COCO file, masks as RLE", write_coco),
    Writer("coco-polygons", "one COCO file, masks as polygons without holes", write_coco_polygons, check_polygons),
    Writer("yolo", "YOLO-seg: a text file for each image", write_yolo, check_polygons),
    Writer("voc", "Pascal VOC: boxes as XML, classes and objects as PNG", write_voc),
    Writer("labelme", "LabelMe: a JSON file for each image", write_labelme, check_polygons),
    Writer("geojson", "GeoJSON for each image, in pixels, with holes", write_geojson, check_polygons),
    Writer("labels", "a PNG for each image, pixels hold the number of their object", write_labels),
    Writer("davis", "DAVIS: a PNG with its palette for each image or frame", write_davis),
    Writer("parquet", "one table with a row for each object, masks as RLE", write_parquet, import_pyarrow),
)
WRITERS: dict[str, Writer] = {writer.name: writer for writer in _ROWS}
"""All output formats by name."""
