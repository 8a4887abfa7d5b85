"""COCO for videos: one JSON file in the layout of the data set YouTube-VIS.

Reference: https://youtube-vos.org/dataset/vis: videos have file_names and length, an annotation is one object and has a
list with one entry for each image (segmentations, bboxes, areas), which is null where the object is not visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..families.base import Size
from ..masks.boxes import corner_and_size
from .records import MaskRecord

_CATEGORY = {"id": 1, "name": "object"}


def coco_video(name: str, size: Size, frames: Sequence[int], records: Iterable[MaskRecord]) -> dict[str, Any]:
    """Return the whole video as plain Python types, ready for JSON.

    Args:
        name: name of the video; the file names of its images are NAME/00000.jpg and so on.
        size: width and height in pixels.
        frames: the numbers of all tracked images; the lists of annotations follow their ascending order.
        records: the records of these images, in any order.
    """
    width, height = size
    ordered = sorted(frames)
    place = {frame: index for index, frame in enumerate(ordered)}
    found: dict[int, list[MaskRecord | None]] = {}
    for record in records:
        row = found.setdefault(record.object_id, [None] * len(ordered))
        row[place[record.frame]] = record if record.area else None
    video = {
        "id": 1,
        "width": width,
        "height": height,
        "length": len(ordered),
        "file_names": [f"{name}/{frame:05d}.jpg" for frame in ordered],
        "frames": ordered,
    }
    annotations = [_annotation(object_id, size, row) for object_id, row in sorted(found.items())]
    return {"videos": [video], "categories": [_CATEGORY], "annotations": annotations}


def _annotation(object_id: int, size: Size, row: Sequence[MaskRecord | None]) -> dict[str, Any]:
    scores = [record.score for record in row if record is not None]
    return {
        "id": object_id,
        "video_id": 1,
        "category_id": _CATEGORY["id"],
        "iscrowd": 0,
        "width": size[0],
        "height": size[1],
        "length": len(row),
        "score": round(sum(scores) / len(scores), 5) if scores else 0.0,
        "segmentations": [record.rle if record is not None else None for record in row],
        "bboxes": [corner_and_size(record.box) if record is not None else None for record in row],
        "areas": [record.area if record is not None else None for record in row],
    }
