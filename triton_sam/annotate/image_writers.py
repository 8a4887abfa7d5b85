"""Formats with one or more files for each image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import numpy as np

from .._common import strict_json
from ..errors import InputError
from ..masks.formats import TOLERANCE, multi_polygon
from ..masks.label_map import LabelMap, label_map_by_area, label_map_png
from ..masks.polygons import mask_to_polygons
from ..masks.rle import BoolArray
from ._writing import Categories, Records, class_numbers, with_stems, write_file
from .records import ImageRecord

DAVIS_OBJECTS = 254
"""The most objects of an image of DAVIS, whose pixels have 8 bits: 0 is the background, and 255 means unknown."""


def write_yolo(folder: Path, records: Records, categories: Categories) -> None:
    """Write YOLO's text file for each image below `yolo/labels`, and `yolo/data.yaml` with the names of the classes.

    A line is the class, from 0, and the largest polygon of the object as x, y in fractions of the image. Reference:
    https://docs.ultralytics.com/datasets/segment/. An object with several parts keeps its largest one, because a line
    holds one polygon.
    """
    classes = class_numbers(categories, first=0)
    for stem, record in with_stems(records):
        lines = [_yolo_line(classes[each["category_id"]], mask, record) for each, mask in _with_masks(record)]
        write_file(folder, f"yolo/labels/{stem}.txt", "".join(lines))
    names = "".join(f"  {number}: {strict_json.dumps(categories[category])}\n" for category, number in classes.items())
    write_file(folder, "yolo/data.yaml", f"names:\n{names}")


def write_voc(folder: Path, records: Records, categories: Categories) -> None:
    """Write `voc/Annotations`, `voc/SegmentationClass`, `voc/SegmentationObject` and `voc/classes.txt`.

    Reference: the development kit of PASCAL VOC 2012. The first pixel has the coordinates 1,1, and a box names its last
    pixel. Class numbers start at 1, in the order of `classes.txt`; where objects overlap, the smaller one wins.
    """
    classes = class_numbers(categories, first=1)
    for stem, record in with_stems(records):
        objects = _label_map(record)
        numbers = np.array([0, *(classes[each["category_id"]] for each in record.objects)], np.uint16)
        write_file(folder, f"voc/Annotations/{stem}.xml", _voc_xml(record, categories))
        write_file(folder, f"voc/SegmentationObject/{stem}.png", label_map_png(objects))
        write_file(folder, f"voc/SegmentationClass/{stem}.png", label_map_png(numbers[objects]))
    write_file(folder, "voc/classes.txt", "".join(f"{name}\n" for name in categories.values()))


def write_labelme(folder: Path, records: Records, categories: Categories) -> None:
    """Write LabelMe's JSON file for each image below `labelme`: copy it beside the image, and LabelMe opens both.

    The parts of an object are polygons with the same ``group_id``. Reference: labelme/_label_file.py.
    """
    for stem, record in with_stems(records):
        shapes = [
            {
                "label": categories[each["category_id"]],
                "points": np.asarray(ring).reshape(-1, 2).tolist(),
                "group_id": number,
                "description": "",
                "shape_type": "polygon",
                "flags": {},
                "mask": None,
            }
            for number, (each, mask) in enumerate(_with_masks(record), 1)
            for ring in mask_to_polygons(mask, TOLERANCE)
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


def write_geojson(folder: Path, records: Records, categories: Categories) -> None:
    """Write a FeatureCollection for each image below `geojson`: x, y in pixels, y downwards, holes as inner rings."""
    for stem, record in with_stems(records):
        features = [
            {
                "type": "Feature",
                "geometry": multi_polygon(mask),
                "properties": {
                    "category": categories[each["category_id"]],
                    "category_id": each["category_id"],
                    "score": each["score"],
                    "area": each["area"],
                    **({"name": each["name"]} if "name" in each else {}),
                },
            }
            for each, mask in _with_masks(record)
        ]
        document = {"type": "FeatureCollection", "features": features}
        write_file(folder, f"geojson/{stem}.geojson", strict_json.dumps(document) + "\n")


def write_labels(folder: Path, records: Records, _: Categories) -> None:
    """Write a PNG for each image below `labels`: pixels hold the number of their object, from 1; small objects win."""
    for record in records():
        write_file(folder, f"labels/{record.name}.png", label_map_png(_label_map(record)))


def write_davis(folder: Path, records: Records, _: Categories) -> None:
    """Write a PNG with the palette of DAVIS for each image below `davis/Annotations`; small objects win.

    The frames of a video have the names VIDEO/00000 and so on, which is the layout of DAVIS.
    """
    for stem, record in with_stems(records):
        if len(record.objects) > DAVIS_OBJECTS:
            raise InputError(
                f"{record.name} has {len(record.objects)} objects, and DAVIS holds {DAVIS_OBJECTS}: use --format labels"
            )
        write_file(folder, f"davis/Annotations/{stem}.png", label_map_png(_label_map(record)))


def _with_masks(record: ImageRecord) -> Iterator[tuple[dict[str, Any], BoolArray]]:
    return zip(record.objects, record.masks(), strict=True)


def _label_map(record: ImageRecord) -> LabelMap:
    return label_map_by_area(record.size, [each["area"] for each in record.objects], record.mask)


def _yolo_line(number: int, mask: BoolArray, record: ImageRecord) -> str:
    polygons = mask_to_polygons(mask, TOLERANCE)
    if not polygons:
        return ""
    fractions = np.asarray(polygons[0]).reshape(-1, 2) / record.size
    return f"{number} {' '.join(f'{value:.6f}' for value in fractions.ravel())}\n"


def _voc_xml(record: ImageRecord, categories: Categories) -> bytes:
    root = ElementTree.Element("annotation")
    _texts(root, {"filename": record.name, "segmented": 1})
    _texts(ElementTree.SubElement(root, "size"), {"width": record.size[0], "height": record.size[1], "depth": 3})
    for each in record.objects:
        if each["area"] == 0:
            continue  # an empty mask has no box
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
        ElementTree.SubElement(parent, name).text = str(value)
