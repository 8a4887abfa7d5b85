"""The prompts of a run: for each object a box, points, or a mask to refine, and a category.

To add a file format, write a function that returns `Prompts` and add it to reading.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from ..errors import InputError
from ..families.base import Family, FloatArray, Size
from ..masks import mask_to_box, rle_to_mask
from ..masks.rle import rle_to_box
from .sources import ImageItem, Skipped

Corners = tuple[float, float, float, float]
"""x1, y1, x2, y2 in pixels of the image."""
Labelled = tuple[float, float, int]
"""x and y in pixels of the image, and 1 for foreground or 0 for background."""

_SCALE, _BIAS = 20.0, -10.0
"""Convert a mask of 0 and 1 to logits, as SAM2's video predictor does (sam2_base.py, _use_mask_as_output)."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one object: a box, points, or a mask."""

    what: str
    category: int
    box: Corners | None = None
    points: tuple[Labelled, ...] = ()
    mask: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """Equal prompts of the same category have equal keys."""
        return repr((self.category, self.box, self.points, self.mask))

    def arguments(self, family: Family) -> dict[str, Any]:
        """Return the arguments of client.segment() for this object. A mask is sent with its box."""
        if self.mask is not None:
            pixels = rle_to_mask(self.mask)
            return {"box": mask_to_box(pixels), "mask_input": mask_logits(pixels, family)}
        if self.points:
            return {
                "point_coords": [[x, y] for x, y, _ in self.points],
                "point_labels": [label for *_, label in self.points],
            }
        return {"box": self.box}


@dataclass(frozen=True)
class Prompts:
    """The prompts of all images.

    Args:
        find: returns the prompts of an image of the given size, and the unreadable parts of the file.
    """

    categories: dict[int, str]
    find: Callable[[ImageItem, Size], tuple[list[Prompt], list[Skipped]]]
    strays: tuple[Skipped, ...] = ()

    def of(self, item: ImageItem, size: Size) -> tuple[list[Prompt], list[Skipped]]:
        """Return the usable prompts of an image, and the skipped ones.

        Boxes are clipped to the image. If an object has several points, only the points outside the image are skipped.
        """
        found, skipped = self.find(item, size)
        kept: list[Prompt] = []
        seen: set[str] = set()
        for each in found:
            prompt, faults = _usable(each, size, self.categories)
            if prompt is not None and prompt.key in seen:
                prompt, faults = None, [*faults, "an equal prompt of the same category precedes it"]
            skipped += [Skipped(item.name, each.what, fault) for fault in faults]
            if prompt is not None:
                kept.append(prompt)
                seen.add(prompt.key)
        return kept, skipped


def mask_logits(mask: np.ndarray[Any, Any], family: Family) -> FloatArray:
    """Return a mask (H,W) as logits (S,S) like those of an earlier prediction, S = ``family.mask_size``.

    Averaged pixels of 0 and 1 become -10 to 10. If the family pads images, the padding is background.
    """
    height, width = mask.shape
    share = family.mask_size / family.image_size
    low = tuple(max(1, round(side * share)) for side in family.resized((width, height)))
    small = Image.fromarray(np.asarray(mask, np.float32)).resize((low[0], low[1]), Image.Resampling.BOX)
    frame = np.zeros((family.mask_size, family.mask_size), np.float32)
    frame[: low[1], : low[0]] = np.asarray(small)
    return np.asarray(frame * _SCALE + _BIAS, np.float32)


def _usable(prompt: Prompt, size: Size, categories: Mapping[int, str]) -> tuple[Prompt | None, list[str]]:
    """Return the usable part of a prompt (None: nothing), and why the rest is unusable."""
    if prompt.category not in categories:
        return None, [f"there is no category {prompt.category}"]
    if prompt.box is not None:
        return _usable_box(prompt, prompt.box, size)
    if prompt.points:
        return _usable_points(prompt, size)
    fault = _fault_of_mask(prompt.mask or {}, size)
    return (None, [fault]) if fault else (prompt, [])


def _usable_box(prompt: Prompt, box: Corners, size: Size) -> tuple[Prompt | None, list[str]]:
    if not all(map(math.isfinite, box)):
        return None, ["a number of the box is not finite"]
    if box[2] <= box[0] or box[3] <= box[1]:
        return None, ["the box has no area"]
    # Rounded as in the client, which would refuse the whole image if the box was empty.
    x1, y1, x2, y2 = np.clip(box, 0, (*size, *size)).astype(np.float32).tolist()
    if x2 <= x1 or y2 <= y1:
        return None, [f"the box lies outside the image of {size[0]} x {size[1]} pixels"]
    return replace(prompt, box=(x1, y1, x2, y2)), []


def _usable_points(prompt: Prompt, size: Size) -> tuple[Prompt | None, list[str]]:
    unknown = next((label for *_, label in prompt.points if label not in (0, 1)), None)
    if unknown is not None:
        return None, [f"a label is {unknown}: 1 is foreground, 0 is background"]
    faults = [_fault_of_point(x, y, size) for x, y, _ in prompt.points]
    kept = tuple(point for point, fault in zip(prompt.points, faults, strict=True) if not fault)
    left = [fault for fault in faults if fault]
    if any(label for *_, label in kept):
        return replace(prompt, points=kept), left
    return None, left or ["the object has no foreground point"]


def _fault_of_point(x: float, y: float, size: Size) -> str:
    if 0 <= x <= size[0] and 0 <= y <= size[1]:  # false for NaN
        return ""
    return f"the point {x:g},{y:g} lies outside the image of {size[0]} x {size[1]} pixels"


def _fault_of_mask(rle: Mapping[str, Any], size: Size) -> str:
    try:
        box = rle_to_box(rle)  # without decoding: a few bytes of RLE may stand for very many pixels
    except InputError as error:
        return str(error)
    height, width = map(int, rle["size"])
    if (width, height) != size:
        return f"the mask has {width} x {height} pixels, and the image {size[0]} x {size[1]}"
    return "" if box else "the mask is empty"
