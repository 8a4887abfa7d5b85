"""COCO files. Reference: https://cocodataset.org/#format-data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from .._common import strict_json
from .._common.files import atomic_path
from ..masks.polygons import Trace
from ..masks.rle import BoolArray
from ..masks.segment import TOLERANCE
from ._writing import Categories, Records
from .records import ImageRecord
from .sources import Skipped


def write_coco(folder: Path, records: Records, categories: Categories, _: Trace) -> list[Skipped]:
    """Write `coco.json`, with masks as compressed RLE."""
    _write(folder / "coco.json", records, categories, None)
    return []


def write_coco_polygons(folder: Path, records: Records, categories: Categories, trace: Trace) -> list[Skipped]:
    """Write `coco_polygons.json`, with masks as polygons with filled holes."""

    def rings(mask: BoolArray) -> list[list[float]]:
        return [polygon.exterior.ravel().tolist() for polygon in trace(mask, TOLERANCE)]

    _write(folder / "coco_polygons.json", records, categories, rings)
    return []


def _write(path: Path, records: Records, categories: Categories, encode: Callable[[BoolArray], Any] | None) -> None:
    """Write a COCO file piece by piece, because the masks of millions of images do not fit into memory."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"images":[')
        _join(file, (_image(record) for record in records()))
        file.write('],"annotations":[')
        _join(file, _annotations(records(), encode))
        file.write('],"categories":[')
        _join(file, ({"id": category, "name": name} for category, name in categories.items()))
        file.write("]}\n")


def _image(record: ImageRecord) -> dict[str, Any]:
    return {"id": record.id, "file_name": record.name, "width": record.size[0], "height": record.size[1]}


def _annotations(records: Iterable[ImageRecord], encode: Callable[[BoolArray], Any] | None) -> Iterable[dict[str, Any]]:
    number = 0
    for record in records:
        shapes: list[Any] = [each["segmentation"] for each in record.objects]
        if encode:
            shapes = [encode(mask) for mask in record.masks()]
        for each, shape in zip(record.objects, shapes, strict=True):
            number += 1
            yield {"id": number, "image_id": record.id, "iscrowd": 0, **each, "segmentation": shape}


def _join(file: TextIO, values: Iterable[dict[str, Any]]) -> None:
    file.writelines(
        ("," if number else "") + strict_json.dumps(value, separators=(",", ":")) for number, value in enumerate(values)
    )
