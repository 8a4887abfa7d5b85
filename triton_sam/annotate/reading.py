"""Reads the prompts of a run from the file or folder that the caller names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from .coco_prompts import coco_prompts
from .points import read_points
from .prompts import Prompts
from .sources import Source, read_coco
from .yolo_prompts import yolo_prompts


def read_boxes(path: Path | None, source: Source, names: Sequence[str] = ()) -> Prompts:
    """Read the boxes of a run.

    Args:
        path: a COCO file (.json), or the folder of YOLO's text files, whose paths are those of the images with the
            suffix .txt. None: the source's own COCO document.
    """
    if path is not None and path.is_dir():
        if not names:
            raise InputError("YOLO's files have numbers of classes only: give --class-names NAME ..., from class 0")
        return yolo_prompts(path, names)
    if path is None and source.coco is None:
        raise InputError("there are no boxes: give --prompts FILE.json (COCO) or --prompts FOLDER (YOLO)")
    return _from_coco(path, source, "bbox")


def read_masks(path: Path | None, source: Source) -> Prompts:
    """Read the masks of a run, which are the ``segmentation`` of a COCO file: RLE or polygons."""
    if path is None and source.coco is None:
        raise InputError("there are no masks: give --prompts FILE.json (COCO)")
    return _from_coco(path, source, "segmentation")


def read_clicks(path: Path | None, source: Source) -> Prompts:
    """Read the points of a run, see points.py."""
    if path is None:
        raise InputError("there are no points: give --prompts FILE.csv or --prompts FILE.json")
    return read_points(path, source)


def _from_coco(path: Path | None, source: Source, field: str) -> Prompts:
    document = source.coco if path is None else read_coco(path)
    if document is None:
        raise InputError("the source is not a COCO data set: give --prompts FILE.json")
    return coco_prompts(document, source, field)
