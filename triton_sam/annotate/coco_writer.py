"""COCO files. Reference: https://cocodataset.org/#format-data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from .._common import strict_json
from .._common.files import atomic_path
from ..masks.polygons import Trace
from ..masks.segment import TOLERANCE
from ._writing import Categories, Named, Records
from .records import ImageRecord
from .sources import Skipped


def write_coco(folder: Path, records: Records, categories: Categories, _: Trace) -> list[Skipped]:
    """Write `coco.json`, with masks as compressed RLE."""
    write_pieces(folder / "coco.json", records, lambda record: record.objects, categories)
    return []


def write_coco_polygons(folder: Path, records: Records, categories: Categories, trace: Trace) -> list[Skipped]:
    """Write `coco_polygons.json`, with masks as polygons with filled holes."""

    def objects(record: ImageRecord) -> Iterable[dict[str, Any]]:
        for each, mask in zip(record.objects, record.masks(), strict=True):
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
