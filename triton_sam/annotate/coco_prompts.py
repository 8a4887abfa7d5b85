"""Boxes and masks of a COCO data set.

Reference: https://cocodataset.org/#format-data. A ``bbox`` is x, y, width, height in pixels; a ``segmentation`` is RLE
or a list of polygons.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import InputError
from ..families.base import Size
from ..masks import mask_to_rle
from ..masks.polygons import fill_polygons
from .prompts import Prompt, Prompts
from .sources import ImageItem, Skipped, Source, categories_of


def coco_prompts(document: dict[str, Any], source: Source, field: str) -> Prompts:
    """Return the prompts of a COCO document.

    Args:
        document: the document. Its images are found by ``file_name``.
    """
    annotations = document.get("annotations")
    if not isinstance(annotations, list):
        raise InputError("the COCO file has no annotations: export them with their images, or give --prompts")
    names = {
        image["id"]: str(image["file_name"])
        for image in document["images"]
        if isinstance(image, dict) and isinstance(image.get("id"), (int, str)) and "file_name" in image
    }
    owned: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    strays = []
    for number, each in enumerate(annotations, 1):
        what, image = _name_and_image(number, each)
        told = names.get(image) if isinstance(image, (int, str)) else None
        name = None if told is None else source.named(told)
        if name is not None:
            owned[name].append((what, each))
        else:
            strays.append(Skipped(told or "", what, "the source has no such image, or it was skipped"))
    read = _READERS[field]

    def find(item: ImageItem, size: Size) -> tuple[list[Prompt], list[Skipped]]:
        found, skipped = [], []
        for what, each in owned.get(item.name, ()):
            try:
                found.append(read(what, each, size))
            except (KeyError, TypeError, ValueError, OverflowError):
                skipped.append(Skipped(item.name, what, f"it has no usable {field}, or no category_id"))
        return found, skipped

    return Prompts(categories_of(document), find, tuple(strays))


def _name_and_image(number: int, annotation: Any) -> tuple[str, Any]:
    if not isinstance(annotation, dict):
        return f"annotation {number}", None
    return f"annotation {annotation.get('id', number)}", annotation.get("image_id")


def _box(what: str, annotation: Mapping[str, Any], _: Size) -> Prompt:
    x, y, width, height = (float(value) for value in annotation["bbox"])
    return Prompt(what, int(annotation["category_id"]), box=(x, y, x + width, y + height))


def _mask(what: str, annotation: Mapping[str, Any], size: Size) -> Prompt:
    shape = annotation["segmentation"]
    mask = shape if isinstance(shape, dict) else _drawn(shape, size)
    return Prompt(what, int(annotation["category_id"]), mask=mask)


def _drawn(polygons: Any, size: Size) -> dict[str, Any]:
    """Draw polygons, whose holes COCO cannot describe, and return the mask as RLE."""
    rings = [np.asarray(ring, np.float64).reshape(-1, 2) for ring in polygons]
    if any(len(corners) < 3 or not np.isfinite(corners).all() for corners in rings):
        raise ValueError("a polygon has three corners at least")
    return mask_to_rle(fill_polygons(rings, size))


_READERS: dict[str, Callable[[str, Mapping[str, Any], Size], Prompt]] = {"bbox": _box, "segmentation": _mask}
