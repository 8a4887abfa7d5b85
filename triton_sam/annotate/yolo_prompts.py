"""Boxes in YOLO's text files: class, centre x, centre y, width, height, as fractions of the image.

Reference: https://docs.ultralytics.com/datasets/detect/. A sixth number, the confidence of a detector, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from ..errors import InputError
from ..families.base import Size
from ..inputs.names import find_file
from ..inputs.text_files import read_text
from .prompts import Prompt, Prompts
from .sources import ImageItem, Skipped


def yolo_prompts(folder: Path, names: Sequence[str]) -> Prompts:
    """Return the boxes of the text files in a folder. The file of an image has its path, with the suffix .txt."""

    def find(item: ImageItem, size: Size) -> tuple[list[Prompt], list[Skipped]]:
        name = str(PurePosixPath(item.name).with_suffix(".txt"))
        found = find_file(folder, name)
        if found is None:
            return [], [Skipped(item.name, "boxes", f"there is no file {name}")]
        try:
            lines = read_text(found[1]).splitlines()
        except InputError as error:
            return [], [Skipped(item.name, "boxes", str(error))]
        return _read(item, size, lines)

    return Prompts(dict(enumerate(names)), find)


def _read(item: ImageItem, size: Size, lines: Iterable[str]) -> tuple[list[Prompt], list[Skipped]]:
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
