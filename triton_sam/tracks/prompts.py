"""Prompts of a video: the points, the box or the mask of one object in one image."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._common.checks import whole_number
from ..errors import InputError, PromptError
from ..inputs.header import open_header
from ..inputs.names import find_file
from ..inputs.remote import read_json
from ..masks.rle import BoolArray
from ..masks.segment import VideoSegment

_KEYS = {"object_id", "frame", "points", "labels", "box", "mask"}
_FORM = (
    "object_id, frame and labels are whole numbers, points are such as [[210, 350]], and a box is such as "
    "[40, 60, 180, 220]"
)


@dataclass(frozen=True)
class ObjectPrompt:
    """All prompts of one object in one image.

    Args:
        object_id: number of the object, at least 1.
        frame: number of the image, from 0.
        points: x, y in pixels.
        labels: 1 (foreground) or 0 (background) for each point.
        box: x1,y1,x2,y2 in pixels, or None.
        mask: path of an image of the size of the video, foreground where it is not 0; None without mask.
    """

    object_id: int
    frame: int
    points: tuple[tuple[float, float], ...] = ()
    labels: tuple[int, ...] = ()
    box: tuple[float, float, float, float] | None = None
    mask: Path | None = None

    def __post_init__(self) -> None:
        where = f"object {self.object_id}, frame {self.frame}"
        if self.object_id < 1 or self.frame < 0:
            raise PromptError(f"{where}: ids of objects begin with 1, numbers of frames with 0")
        if len(self.points) != len(self.labels) or any(label not in (0, 1) for label in self.labels):
            raise PromptError(f"{where}: each point needs a label, 1 (foreground) or 0 (background)")
        if self.mask is not None and (self.points or self.box is not None):
            raise PromptError(f"{where}: give a mask alone, or points and a box")
        if self.mask is None and self.box is None and not self.points:
            raise PromptError(f"{where}: give points, a box or a mask")

    def send(self, video: Any) -> VideoSegment:
        """Prompt the object in an open ``triton_sam.client.video.Video``, and return its mask there.

        Raises:
            PromptError: the mask cannot be read, or the server refuses the prompt.
        """
        mask = None if self.mask is None else read_mask(self.mask)
        found: VideoSegment = video.add(
            self.frame, self.object_id, self.points or None, self.labels or None, self.box, mask
        )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the prompt as plain Python types. A mask file is represented by the hash of its content.

        Raises:
            PromptError: the file of the mask cannot be read.
        """
        return {
            "object_id": self.object_id,
            "frame": self.frame,
            "points": [list(point) for point in self.points],
            "labels": list(self.labels),
            "box": list(self.box) if self.box else None,
            "mask": _digest(self.mask) if self.mask else None,
        }


def read_mask(path: Path) -> BoolArray:
    """Read an image as a mask: bool (H,W), foreground where any channel but the opacity is not 0.

    Raises:
        PromptError: the file cannot be read.
    """
    try:
        with open_header(path) as image:
            grey = image.mode in ("L", "P", "1", "I", "I;16", "F")
            pixels = np.asarray(image if grey else image.convert("RGB"))
    except Exception as error:  # for damaged data, Pillow's decoders raise almost any exception
        raise PromptError(f"{path} is not an image that can be read as a mask: give a PNG") from error
    return np.asarray(np.atleast_3d(pixels).any(axis=2))


def read_prompts(path: Path) -> list[ObjectPrompt]:
    """Read a JSON file with a list of prompts: object_id, frame, and points with labels, box or mask.

    The path of a mask is relative to the folder of the JSON file.

    Raises:
        PromptError: the file cannot be read, or an entry is not a prompt.
    """
    try:
        rows = read_json(path)
    except InputError as error:
        raise PromptError(str(error)) from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise PromptError(f'{path} must hold a list such as [{{"object_id": 1, "frame": 0, "points": [[210, 350]]}}]')
    return [_prompt(path, number, row) for number, row in enumerate(rows)]


def merge(prompts: Sequence[ObjectPrompt]) -> list[ObjectPrompt]:
    """Merge the points and boxes of each object in each image into one prompt, in the order of first occurrence.

    Raises:
        PromptError: an object has two boxes or masks in one image, or a mask and points.
    """
    merged: dict[tuple[int, int], ObjectPrompt] = {}
    for prompt in prompts:
        key = prompt.object_id, prompt.frame
        before = merged.get(key)
        merged[key] = prompt if before is None else _joined(before, prompt)
    return list(merged.values())


def _joined(one: ObjectPrompt, other: ObjectPrompt) -> ObjectPrompt:
    if (one.box and other.box) or (one.mask and other.mask):
        raise PromptError(f"object {one.object_id}, frame {one.frame}: give one box or one mask")
    return ObjectPrompt(
        one.object_id,
        one.frame,
        one.points + other.points,
        one.labels + other.labels,
        one.box or other.box,
        one.mask or other.mask,
    )


def _prompt(path: Path, number: int, row: Mapping[str, Any]) -> ObjectPrompt:
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise PromptError(
            f"{path}, entry {number}: unknown key {unknown[0]!r}; the keys are {', '.join(sorted(_KEYS))}"
        )
    try:
        points = tuple((float(x), float(y)) for x, y in row.get("points") or ())
        given = row.get("labels")
        labels = tuple(whole_number(label) for label in given) if given is not None else (1,) * len(points)
        box = None
        if row.get("box") is not None:
            x1, y1, x2, y2 = (float(value) for value in row["box"])
            box = (x1, y1, x2, y2)
        mask = _beside(path, str(row["mask"])) if row.get("mask") else None
        return ObjectPrompt(whole_number(row["object_id"]), whole_number(row["frame"]), points, labels, box, mask)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, PromptError):
            raise
        missing = [key for key in ("object_id", "frame") if key not in row]
        why = f"it has no {missing[0]}" if missing else _FORM
        raise PromptError(f"{path}, entry {number} is not a prompt: {why}") from error


def _beside(path: Path, name: str) -> Path:
    found = find_file(path.parent, name)
    return path.parent / name if found is None else found[1]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise PromptError(f"the mask {path} cannot be read: {error.strerror or error}") from error
