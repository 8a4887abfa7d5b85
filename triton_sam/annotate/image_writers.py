"""The formats with files for each image, and what all writers share."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from xml.etree import ElementTree

import numpy as np

from .._common import strict_json
from .._common.files import atomic_write
from ..masks.label_map import LabelMap, label_map_by_area, label_map_png
from ..masks.polygons import Trace, joined_ring, to_feature, to_geometry, trace_polygons
from ..masks.rle import BoolArray
from ..masks.segment import TOLERANCE
from .folder import ImageRecord
from .large import LargeResult
from .sources import Skipped

Categories = Mapping[int, str]
"""Names of categories by id."""
Records = Callable[[], Iterable[ImageRecord]]
"""Each call iterates over all records from the start. Records with an error are left out."""

Named = TypeVar("Named", ImageRecord, LargeResult)

_NAME_BYTES, _SUFFIX_BYTES = 255, 8
"""The longest file name on most systems, and the length of the longest suffix of a result, `.geojson`."""
_FOLDS_CASE = ("win32", "darwin")
"""The platforms whose file names usually do not distinguish capital letters."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def check_polygons() -> None:
    """Raise MissingDependencyError if outlines cannot be traced."""
    trace_polygons([[1]])


def write_file(folder: Path, name: str, content: bytes | str) -> None:
    """Write a file below a folder atomically, and create the folders on its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, content if isinstance(content, bytes) else content.encode())


def with_stems(
    records: Callable[[], Iterable[Named]], left: list[Skipped], *, keeps_suffix: bool = False
) -> Iterator[tuple[str, Named]]:
    """Yield each record, or result of a large image, with its image's name without the suffix.

    An image is left out and listed in ``left`` if its file name is too long or already taken by another image.
    """
    taken: dict[str, str] = {}
    for record in records():
        name = PurePosixPath(_inside(record.name))
        stem = str(name if keeps_suffix else name.with_suffix(""))
        key = stem.casefold() if sys.platform in _FOLDS_CASE else stem
        if key in taken:
            why = f"{taken[key]} has the same file {stem}: rename one of them, or use another --format"
            left.append(Skipped(record.name, "image", why))
        elif not _is_too_long(stem, record, left):
            taken[key] = record.name
            yield stem, record


def _inside(name: str) -> str:
    """Return the name of an image as a path below the folder of a format, without `..`, a root and a drive."""
    below = os.path.splitdrive(name)[1]
    return "/".join(part for part in posixpath.normpath(below).split("/") if part not in ("", ".."))


def _is_too_long(stem: str, record: Named, left: list[Skipped]) -> bool:
    """Return whether the file name is too long with the longest suffix; if so, add the image to ``left``."""
    if len(os.fsencode(PurePosixPath(stem).name)) <= _NAME_BYTES - _SUFFIX_BYTES:
        return False
    why = f"its name has more than {_NAME_BYTES - _SUFFIX_BYTES} bytes, so no file of results can have it: shorten it"
    left.append(Skipped(record.name, "image", why))
    return True


def class_numbers(categories: Categories, first: int) -> dict[int, int]:
    """Return class numbers from ``first`` by category id, in the order of the categories."""
    return {category: number for number, category in enumerate(categories, first)}


def plain(text: str) -> str:
    """Return a text with replacement characters for those that XML, Parquet and GeoPackage do not support."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """Return a name as one line, for lists with one name per line."""
    return " ".join(plain(text).split())


BYTE_OBJECTS = 254
"""Maximum number of objects in an image of DAVIS and VOC: of the 8-bit values, 0 is background and 255 unknown."""

_PROPERTIES = frozenset(("category_id", "score", "area", "name"))


def write_yolo(folder: Path, records: Records, categories: Categories, trace: Trace) -> list[Skipped]:
    """Write YOLO's text file for each image below `yolo/labels`, and `yolo/data.yaml` for the images in `yolo/images`.

    A line has the class, from 0, and one polygon as x, y in fractions of the image. Bridges without a width join the
    parts and the holes of an object to one polygon, as Ultralytics' own converter joins parts. Reference:
    https://docs.ultralytics.com/datasets/segment/.
    """
    left: list[Skipped] = []
    classes = class_numbers(categories, first=0)
    for stem, record in with_stems(records, left):
        lines = [_yolo_line(classes[each["category_id"]], mask, record, trace) for each, mask in record.with_masks()]
        write_file(folder, f"yolo/labels/{stem}.txt", "".join(lines))
    names = [
        f"  {number}: {strict_json.dumps(one_line(categories[each]), ensure_ascii=False)}"
        for each, number in classes.items()
    ]
    lines = ["train: images", "val: images", *(["names:", *names] if names else ["names: {}"])]
    write_file(folder, "yolo/data.yaml", "".join(f"{line}\n" for line in lines))
    return left


def write_voc(folder: Path, records: Records, categories: Categories, _: Trace) -> list[Skipped]:
    """Write `voc/Annotations`, `voc/SegmentationClass`, `voc/SegmentationObject` and `voc/classes.txt`.

    Reference: the development kit of PASCAL VOC 2012. The first pixel has the coordinates 1,1, and a box includes its
    last pixel. Class numbers start at 1, in the order of `classes.txt`; where objects overlap, the smaller one wins.
    """
    left: list[Skipped] = []
    classes = class_numbers(categories, first=1)
    for stem, record in with_stems(records, left):
        kept = _in_bytes(record, left, classes)
        objects = _label_map(kept)
        numbers = np.array([0, *(classes[each["category_id"]] for each in kept.objects)], np.uint16)
        write_file(folder, f"voc/Annotations/{stem}.xml", _voc_xml(kept, categories))
        write_file(folder, f"voc/SegmentationObject/{stem}.png", label_map_png(objects))
        write_file(folder, f"voc/SegmentationClass/{stem}.png", label_map_png(numbers[objects]))
    write_file(folder, "voc/classes.txt", "".join(f"{one_line(name)}\n" for name in categories.values()))
    return left


def write_labelme(folder: Path, records: Records, categories: Categories, trace: Trace) -> list[Skipped]:
    """Write LabelMe's JSON file for each image below `labelme`. Copy the file beside the image to open both.

    The parts of an object are polygons with the same ``group_id``; holes are filled. Reference: labelme/_label_file.py.
    """
    left: list[Skipped] = []
    for stem, record in with_stems(records, left):
        shapes = [
            {
                "label": categories[each["category_id"]],
                "points": polygon.exterior.tolist(),
                "group_id": number,
                "description": "",
                "shape_type": "polygon",
                "flags": {},
                "mask": None,
            }
            for number, (each, mask) in enumerate(record.with_masks(), 1)
            for polygon in trace(mask, TOLERANCE)
        ]
        document: dict[str, Any] = {
            "version": "5.5.0",
            "flags": {},
            "shapes": shapes,
            "imagePath": PurePosixPath(record.name).name,
            "imageData": None,
            "imageHeight": record.size[1],
            "imageWidth": record.size[0],
        }
        write_file(folder, f"labelme/{stem}.json", strict_json.dumps(document) + "\n")
    return left


def write_geojson(folder: Path, records: Records, categories: Categories, trace: Trace) -> list[Skipped]:
    """Write a FeatureCollection for each image below `geojson`: x, y in pixels, y downwards, holes as inner rings.

    QuPath imports the objects as annotations with their categories as classes.
    """
    left: list[Skipped] = []
    for stem, record in with_stems(records, left):
        features = []
        for each, mask in record.with_masks():
            geometry, label = to_geometry(trace(mask, TOLERANCE)), categories[each["category_id"]]
            kept = {name: value for name, value in each.items() if name in _PROPERTIES}
            features.append(to_feature(geometry, label, {"category": label, **kept}))
        document = {"type": "FeatureCollection", "features": features}
        write_file(folder, f"geojson/{stem}.geojson", strict_json.dumps(document) + "\n")
    return left


def write_labels(folder: Path, records: Records, _: Categories, __: Trace) -> list[Skipped]:
    """Write a PNG for each image below `labels`. Pixels are the object's number, from 1; small objects win."""
    left: list[Skipped] = []
    for name, record in with_stems(records, left, keeps_suffix=True):
        write_file(folder, f"labels/{name}.png", label_map_png(_label_map(record), palette=False))
    return left


def write_davis(folder: Path, records: Records, _: Categories, __: Trace) -> list[Skipped]:
    """Write a PNG with the palette of DAVIS for each image below `davis/Annotations`; small objects win.

    Frames of a video are named VIDEO/00000 and so on, as in the layout of DAVIS.
    """
    left: list[Skipped] = []
    for stem, record in with_stems(records, left):
        write_file(folder, f"davis/Annotations/{stem}.png", label_map_png(_label_map(_in_bytes(record, left, {}))))
    return left


def _in_bytes(record: ImageRecord, left: list[Skipped], classes: Mapping[int, int]) -> ImageRecord:
    """Return a record without the objects whose numbers exceed 8-bit pixels; those are added to ``left``.

    These are classes above 254, and the objects with the lowest scores if there are too many.
    """
    numbered, reasons = [], {}
    for index, each in enumerate(record.objects):
        if classes.get(each["category_id"], 0) > BYTE_OBJECTS:
            reasons[index] = f"the format holds {BYTE_OBJECTS} classes: use another --format"
        else:
            numbered.append(index)
    numbered.sort(key=lambda index: -record.objects[index]["score"])
    for index in numbered[BYTE_OBJECTS:]:
        reasons[index] = f"the format holds {BYTE_OBJECTS} objects of an image, here the best: use --format labels"
    left += [Skipped(record.name, f"object {index + 1}", reasons[index]) for index in sorted(reasons)]
    return replace(record, objects=tuple(record.objects[index] for index in sorted(numbered[:BYTE_OBJECTS])))


def _label_map(record: ImageRecord) -> LabelMap:
    return label_map_by_area(record.size, [each["area"] for each in record.objects], record.mask)


def _yolo_line(number: int, mask: BoolArray, record: ImageRecord, trace: Trace) -> str:
    fractions = joined_ring(trace(mask, TOLERANCE)) / record.size
    return f"{number} {' '.join(f'{value:.6f}' for value in fractions.ravel())}\n"


def _voc_xml(record: ImageRecord, categories: Categories) -> bytes:
    root = ElementTree.Element("annotation")
    _texts(root, {"filename": record.name, "segmented": 1})
    _texts(ElementTree.SubElement(root, "size"), {"width": record.size[0], "height": record.size[1], "depth": 3})
    for each in record.objects:
        x, y, width, height = each["bbox"]
        entry = ElementTree.SubElement(root, "object")
        _texts(entry, {"name": categories[each["category_id"]], "difficult": 0})
        box = {"xmin": x + 1, "ymin": y + 1, "xmax": x + width, "ymax": y + height}
        _texts(ElementTree.SubElement(entry, "bndbox"), box)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8")
    return content + b"\n"


def _texts(parent: ElementTree.Element, values: dict[str, Any]) -> None:
    for name, value in values.items():
        ElementTree.SubElement(parent, name).text = plain(str(value))
