"""The table of output formats, with COCO files and Parquet tables. A format is a function that writes files, and a row.

Writers read the records in the order of the run, so that interruptions do not change the files. Reference of COCO:
https://cocodataset.org/#format-data. The Parquet table is for data frames and engines such as Ray, Spark and DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from .._common import strict_json
from .._common.extras import missing
from .._common.files import atomic_path
from ..masks.polygons import Trace
from ..masks.segment import TOLERANCE
from .folder import ImageRecord
from .image_writers import (
    Categories,
    Named,
    Records,
    check_polygons,
    plain,
    write_davis,
    write_geojson,
    write_labelme,
    write_labels,
    write_voc,
    write_yolo,
)
from .sources import Skipped


def write_coco(folder: Path, records: Records, categories: Categories, _: Trace) -> list[Skipped]:
    """Write `coco.json`, with masks as compressed RLE."""
    write_pieces(folder / "coco.json", records, lambda record: record.objects, categories)
    return []


def write_coco_polygons(folder: Path, records: Records, categories: Categories, trace: Trace) -> list[Skipped]:
    """Write `coco_polygons.json`, with masks as polygons with filled holes."""

    def objects(record: ImageRecord) -> Iterable[dict[str, Any]]:
        for each, mask in record.with_masks():
            yield {**each, "segmentation": [polygon.exterior.ravel().tolist() for polygon in trace(mask, TOLERANCE)]}

    write_pieces(folder / "coco_polygons.json", records, objects, categories)
    return []


def write_pieces(
    path: Path,
    records: Callable[[], Iterable[Named]],
    objects: Callable[[Named], Iterable[dict[str, Any]]],
    categories: Categories,
) -> None:
    """Write a COCO file piece by piece, because the objects of millions of images do not fit into memory.

    Args:
        objects: returns the objects of a record as annotations without ``id``, ``image_id`` and ``iscrowd``.
    """
    places = ((record.id, each) for record in records() for each in objects(record))
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"images":[')
        _join(file, map(_image, records()))
        file.write('],"annotations":[')
        _join(file, ({"id": number, "image_id": i, "iscrowd": 0, **each} for number, (i, each) in enumerate(places, 1)))
        file.write('],"categories":[')
        _join(file, ({"id": category, "name": name} for category, name in categories.items()))
        file.write("]}\n")


def _image(record: Named) -> dict[str, Any]:
    return {"id": record.id, "file_name": record.name, "width": record.size[0], "height": record.size[1]}


def _join(file: TextIO, values: Iterable[dict[str, Any]]) -> None:
    file.writelines(
        ("," if number else "") + strict_json.dumps(value, separators=(",", ":")) for number, value in enumerate(values)
    )


ROWS_AT_ONCE = 10_000
"""Rows in one row group, and the maximum number of rows in memory."""


def write_parquet(folder: Path, records: Records, categories: Categories, _: Trace) -> list[Skipped]:
    """Write `objects.parquet`.

    The columns are image_id, file_name, width, height, category_id, category, score (predicted IoU), area (pixels),
    x, y, box_width, box_height (pixels), and counts (compressed COCO RLE of the size height x width).
    """
    arrow, parquet = import_pyarrow()
    schema = _schema(arrow)
    with (
        atomic_path(folder / "objects.parquet") as temporary,
        parquet.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        rows: list[dict[str, Any]] = []
        for row in _rows(records, categories):
            rows.append(row)
            if len(rows) == ROWS_AT_ONCE:
                writer.write_table(arrow.Table.from_pylist(rows, schema))
                rows = []
        writer.write_table(arrow.Table.from_pylist(rows, schema))
    return []


def _rows(records: Records, categories: Categories) -> Iterator[dict[str, Any]]:
    for record in records():
        for each in record.objects:
            x, y, width, height = each["bbox"]
            yield {
                "image_id": record.id,
                "file_name": plain(record.name),
                "width": record.size[0],
                "height": record.size[1],
                "category_id": each["category_id"],
                "category": plain(categories[each["category_id"]]),
                "score": each["score"],
                "area": each["area"],
                "x": x,
                "y": y,
                "box_width": width,
                "box_height": height,
                "counts": each["segmentation"]["counts"],
            }


def _schema(arrow: Any) -> Any:
    texts, fractions = ("file_name", "category", "counts"), ("score",)
    whole = ("width", "height", "area", "x", "y", "box_width", "box_height")
    kinds = {"image_id": arrow.int64(), "category_id": arrow.int64()}
    kinds |= dict.fromkeys(texts, arrow.string()) | dict.fromkeys(fractions, arrow.float32())
    kinds |= dict.fromkeys(whole, arrow.int32())
    order = ("image_id", "file_name", "width", "height", "category_id", "category", "score", *whole[2:], "counts")
    return arrow.schema([(name, kinds[name]) for name in order])


def import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise missing("a Parquet table needs", "parquet", error) from error
    return pyarrow, parquet


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
