"""COCO results of images with many objects: a JSON file with images, annotations and a category for each label.

Reference: https://cocodataset.org/#format-data. Masks are compressed RLE, as in pycocotools.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..families.base import Size
from .boxes import corner_and_size
from .segment import UNNAMED, Segment


def coco_document(images: Iterable[tuple[str, Size, Iterable[Segment]]]) -> dict[str, Any]:
    """Return the objects of images as JSON values. Empty masks are left out.

    Args:
        images: for each image its file name, its width and height in pixels, and its objects.
    """
    document: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
    categories: dict[str, int] = {}
    for image_id, (name, (width, height), segments) in enumerate(images, 1):
        document["images"].append({"id": image_id, "file_name": name, "width": width, "height": height})
        for segment in (each for each in segments if each.box is not None):
            category = categories.setdefault(segment.label or UNNAMED, len(categories) + 1)
            number = len(document["annotations"]) + 1
            place = {"id": number, "image_id": image_id, "iscrowd": 0}
            document["annotations"].append({**place, **coco_object(segment, category)})
    named = categories or {UNNAMED: 1}
    document["categories"] = [{"id": number, "name": name} for name, number in named.items()]
    return document


def coco_object(segment: Segment, category: int) -> dict[str, Any]:
    """Return an object as the members of a COCO annotation that are independent of its image."""
    return {
        "category_id": category,
        "score": round(float(segment.score), 5) if math.isfinite(segment.score) else 0.0,
        "area": segment.area,
        "bbox": corner_and_size(segment.box),
        "segmentation": segment.to_rle(),
    }
