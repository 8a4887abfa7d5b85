"""Boxes in YOLO's text files: class, centre x, centre y, width, height, as fractions of the image.

Reference: https://docs.ultralytics.com/datasets/detect/. A sixth number, the confidence of a detector, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..families.base import Size
from .prompts import Prompt, Prompts
from .sources import ImageItem, Skipped


def yolo_prompts(folder: Path, names: Sequence[str]) -> Prompts:
    """Return the boxes of the text files in a folder. The file of an image has its path, with the suffix .txt."""

    def find(item: ImageItem, size: Size) -> tuple[list[Prompt], list[Skipped]]:
        path = (folder / item.name).with_suffix(".txt")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return [], [Skipped(item.name, "boxes", f"there is no file {path.name}")]
        except UnicodeDecodeError:
            return [], [Skipped(item.name, "boxes", f"{path.name} cannot be read: it is no text in UTF-8")]
        except OSError as error:
            return [], [Skipped(item.name, "boxes", f"{path.name} cannot be read: {error.strerror or error}")]
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
