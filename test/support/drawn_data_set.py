"""A small COCO data set of drawn scenes."""

from __future__ import annotations

from pathlib import Path

SIDE = 320
OBJECTS = 4
"""Boxes of each scene, at most."""


def write_scenes(folder: Path, count: int) -> Path:
    """Write scenes and `boxes.json` into a new folder; return the path of the latter. It needs OpenCV."""
    from triton_sam.scenes.data_set import write_data_set

    folder.mkdir(parents=True)
    return write_data_set(folder, count, SIDE, OBJECTS)
