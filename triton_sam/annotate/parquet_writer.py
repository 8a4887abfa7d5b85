"""One Parquet table with one row for each object, for data frames and engines such as Ray, Spark and DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._common.extras import missing
from .._common.files import atomic_path
from ..masks.polygons import Trace
from ._writing import Categories, Records, plain
from .sources import Skipped

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
