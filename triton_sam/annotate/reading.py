"""Reads the prompts of a run from a file or folder: COCO, YOLO, or points (prompts.py).

COCO (https://cocodataset.org/#format-data): a ``bbox`` is x, y, width, height in pixels; a ``segmentation`` is RLE or a
list of polygons. YOLO (https://docs.ultralytics.com/datasets/detect/): a line is class, centre x, centre y, width and
height, as fractions of the image; the sixth number, a detector's confidence, is ignored.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from .._common.checks import whole_number
from ..errors import InputError
from ..families.base import Size
from ..inputs.names import find_file
from ..inputs.remote import read_text
from ..masks import mask_to_rle
from ..masks.polygons import fill_polygons
from .prompts import Prompt, Prompts, read_points
from .sources import ImageItem, Skipped, Source, categories_of, read_coco, size_in_coco


def read_boxes(path: Path | None, source: Source, names: Sequence[str] = ()) -> Prompts:
    """Read the boxes of a run.

    Args:
        path: a COCO file (.json), or the folder of YOLO's text files, whose paths are the images' paths with the suffix
            .txt. None: the source's own COCO document.
    """
    if path is not None and path.is_dir():
        if not names:
            raise InputError("YOLO's files have numbers of classes only: give --class-names NAME ..., from class 0")
        return _yolo_prompts(path, names)
    absent = "there are no boxes: give --prompts FILE.json (COCO) or --prompts FOLDER (YOLO)"
    return _from_coco(path, source, "bbox", absent)


def read_masks(path: Path | None, source: Source) -> Prompts:
    """Read the masks of a run from the ``segmentation`` of a COCO file: RLE or polygons."""
    return _from_coco(path, source, "segmentation", "there are no masks: give --prompts FILE.json (COCO)")


def read_clicks(path: Path | None, source: Source) -> Prompts:
    """Read the points of a run, see prompts.py."""
    if path is None:
        raise InputError("there are no points: give --prompts FILE.csv or --prompts FILE.json")
    return read_points(path, source)


def _from_coco(path: Path | None, source: Source, field: str, absent: str) -> Prompts:
    document = source.coco if path is None else read_coco(path)
    if document is None:
        raise InputError(absent)
    return _coco_prompts(document, source, field)


def _coco_prompts(document: dict[str, Any], source: Source, field: str) -> Prompts:
    """Return the prompts of a COCO document. Images are identified by ``file_name``."""
    annotations = document.get("annotations")
    if not isinstance(annotations, list):
        raise InputError("the COCO file has no annotations: export them with their images, or give --prompts")
    pairs = {(image["id"], str(image["file_name"])) for image in document["images"] if _is_named(image)}
    names, images = dict(pairs), Counter(number for number, _ in pairs)
    sizes = {image["id"]: _stated_size(image) for image in document["images"] if _is_named(image)}
    owned: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    stated: dict[str, Size | None] = {}
    strays = []
    for number, each in enumerate(annotations, 1):
        what, image = _name_and_image(number, each)
        told = names.get(image) if isinstance(image, (int, float, str)) else None
        name = None if told is None else source.find_name(told)
        if told is not None and images[image] > 1:
            strays.append(Skipped("", what, "several images have its image_id"))
        elif name is not None:
            owned[name].append((what, each))
            stated[name] = sizes[image]
        else:
            strays.append(Skipped(told or "", what, "the source has no such image, or it was skipped"))
    read = _READERS[field]

    def find(item: ImageItem, size: Size) -> tuple[list[Prompt], list[Skipped]]:
        found, skipped = [], []
        told = stated.get(item.name)
        for what, each in owned.get(item.name, ()):
            if told not in (None, size):
                why = f"its file says {told[0]} x {told[1]} pixels, and the image has {size[0]} x {size[1]}"
                skipped.append(Skipped(item.name, what, why))
                continue
            try:
                found.append(read(what, each, size))
            except (KeyError, TypeError, ValueError, OverflowError):
                skipped.append(
                    Skipped(item.name, what, f"it has no usable {field}, or its category_id is not a whole number")
                )
        return found, skipped

    return Prompts(categories_of(document), find, tuple(strays))


def _stated_size(image: Mapping[str, Any]) -> Size | None:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        size = size_in_coco(image)
        return size if size is None or min(size) > 0 else None
    return None


def _is_named(image: Any) -> bool:
    return isinstance(image, dict) and isinstance(image.get("id"), (int, float, str)) and "file_name" in image


def _name_and_image(number: int, annotation: Any) -> tuple[str, Any]:
    if not isinstance(annotation, dict):
        return f"annotation {number}", None
    return f"annotation {annotation.get('id', number)}", annotation.get("image_id")


def _box(what: str, annotation: Mapping[str, Any], _: Size) -> Prompt:
    x, y, width, height = (float(value) for value in annotation["bbox"])
    return Prompt(what, whole_number(annotation["category_id"]), box=(x, y, x + width, y + height))


def _mask(what: str, annotation: Mapping[str, Any], size: Size) -> Prompt:
    shape = annotation["segmentation"]
    mask = shape if isinstance(shape, dict) else _drawn(shape, size)
    return Prompt(what, whole_number(annotation["category_id"]), mask=mask)


def _drawn(polygons: Any, size: Size) -> dict[str, Any]:
    """Draw polygons (without holes, as in COCO) and return the mask as RLE."""
    rings = [np.asarray(ring, np.float64).reshape(-1, 2) for ring in polygons]
    if any(len(corners) < 3 or not np.isfinite(corners).all() for corners in rings):
        raise ValueError("a polygon has three corners at least")
    return mask_to_rle(fill_polygons(rings, size))


_READERS: dict[str, Callable[[str, Mapping[str, Any], Size], Prompt]] = {"bbox": _box, "segmentation": _mask}


def _yolo_prompts(folder: Path, names: Sequence[str]) -> Prompts:
    """Return the boxes of the text files in a folder. Each file has its image's path with the suffix .txt."""

    def find(item: ImageItem, size: Size) -> tuple[list[Prompt], list[Skipped]]:
        name = str(PurePosixPath(item.name).with_suffix(".txt"))
        found = find_file(folder, name)
        if found is None:
            return [], [Skipped(item.name, "boxes", f"there is no file {name}")]
        try:
            lines = read_text(found[1]).splitlines()
        except InputError as error:
            return [], [Skipped(item.name, "boxes", str(error))]
        return _yolo_boxes(item, size, lines)

    return Prompts(dict(enumerate(names)), find)


def _yolo_boxes(item: ImageItem, size: Size, lines: Iterable[str]) -> tuple[list[Prompt], list[Skipped]]:
    found, skipped = [], []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            if len(words) not in (5, 6):
                raise ValueError("five numbers, or six with a confidence")
            x, y, width, height = (float(word) for word in words[1:5])
            box = ((x - width / 2) * size[0], (y - height / 2) * size[1])
            end = ((x + width / 2) * size[0], (y + height / 2) * size[1])
            found.append(Prompt(f"line {number}", int(words[0]), box=(*box, *end)))
        except ValueError:
            skipped.append(Skipped(item.name, f"line {number}", "it is not: class x y width height"))
    return found, skipped
