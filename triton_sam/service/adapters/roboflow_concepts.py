"""Words and examples through Roboflow's `/sam3/concept_segment`.

Reference: inference/core/entities/requests/sam3.py and inference/models/sam3 of https://github.com/roboflow/inference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import Request
from pydantic import Field

from ...concepts.instances import Instance
from ...concepts.query import MAX_EXAMPLES, MAX_TEXTS
from ...masks.rle import BoolArray
from ..answers import MAX_MASK_PIXELS
from ..problems import Problem
from ..store import StoredImage
from .bridge import Bridge, Lenient

MOST = 200
"""Maximum number of instances of a prompt: SAM3 proposes 200."""
NAMES = {"threshold": "output_prob_thresh"}
"""Roboflow's names of the filters."""


class ExampleBox(Lenient):
    """A box in pixels: its top left corner and size, or two corners. Unlike in SAM2's boxes, x and y are a corner."""

    x: float | None = None
    y: float | None = None
    width: float | None = None
    height: float | None = None
    x0: float | None = None
    y0: float | None = None
    x1: float | None = None
    y1: float | None = None

    def corners(self) -> list[float]:
        if None not in (self.x0, self.y0, self.x1, self.y1):
            return [float(each or 0) for each in (self.x0, self.y0, self.x1, self.y1)]
        if None in (self.x, self.y, self.width, self.height):
            raise Problem(422, "a box needs x, y, width and height, or x0, y0, x1 and y1")
        x, y, width, height = (float(each or 0) for each in (self.x, self.y, self.width, self.height))
        return [x, y, x + width, y + height]


class Concept(Lenient):
    """A concept: words, example boxes, or both."""

    type: str | None = Field(default=None, max_length=32)
    text: str | None = None
    output_prob_thresh: float | None = None
    boxes: list[ExampleBox] | None = Field(default=None, max_length=MAX_EXAMPLES)
    box_labels: list[int] | None = Field(default=None, max_length=MAX_EXAMPLES)

    def filters(self, default: float | None) -> dict[str, Any]:
        """Return the members of a FindRequest except for the text."""
        if not self.text and not self.boxes:
            raise Problem(422, "each prompt needs a text, boxes, or both")
        threshold = default if self.output_prob_thresh is None else self.output_prob_thresh
        if not self.boxes:
            return {"threshold": threshold}
        labels = [int(each != 0) for each in self.box_labels] if self.box_labels is not None else None
        return {"threshold": threshold, "boxes": [each.corners() for each in self.boxes], "box_labels": labels}

    def echo(self, number: int) -> dict[str, Any]:
        kind = self.type or ("visual" if self.boxes else "text")
        return {"prompt_index": number, "type": kind, "text": self.text, "num_boxes": len(self.boxes or ())}


class ConceptRequest(Lenient):
    """A call without its image."""

    prompts: list[Concept] = Field(min_length=1, max_length=MAX_TEXTS)
    output_prob_thresh: float | None = 0.5
    nms_iou_threshold: float | None = Field(default=None, ge=0, le=1)
    format: str = Field(default="polygon", max_length=32)


Found = tuple[int, Instance]
"""The index of a prompt, and one of its instances."""


async def find_concepts(
    bridge: Bridge, request: Request, image: StoredImage, asked: ConceptRequest, write: Callable[[Instance], Any]
) -> list[dict[str, Any]]:
    """Return the results of all prompts, each with its predictions, the best first."""
    pair = await bridge.words_pair("sam3")
    width, height = image.size
    limit = min(MOST, MAX_MASK_PIXELS // (width * height * len(asked.prompts)))  # so that all masks fit into memory
    if limit < 1:
        raise Problem(422, f"{len(asked.prompts)} prompts are too many for {width} x {height} pixels: send fewer")
    found: list[Found] = []
    for numbers in _together(asked.prompts, asked.output_prob_thresh):
        prompts = [asked.prompts[number] for number in numbers]
        texts = [each.text for each in prompts if each.text]
        filters = prompts[0].filters(asked.output_prob_thresh)
        search = bridge.found(image, pair, texts, names=NAMES, limit=limit, **filters)
        instances = await bridge.run(request, search)
        found += [(numbers[each.object_index], each) for each in instances]
    if asked.nms_iou_threshold is not None:
        found.sort(key=lambda each: -each[1].score)

    def convert(each: Iterator[Found]) -> list[tuple[int, Any]]:
        kept = each if asked.nms_iou_threshold is None else _best_of_all(each, asked.nms_iou_threshold)
        return [(number, write(instance)) for number, instance in kept]

    written = await bridge.run(request, bridge.engine.budgets.workers.reduce(2 * width * height, convert, found))
    return [
        {
            "prompt_index": number,
            "echo": prompt.echo(number),
            "predictions": [each for owner, each in written if owner == number],
        }
        for number, prompt in enumerate(asked.prompts)
    ]


def _together(prompts: Sequence[Concept], default: float | None) -> list[list[int]]:
    """Return the indexes of prompts, grouped by search: prompts without boxes share one if their thresholds agree."""
    groups: dict[Any, list[int]] = {}
    for number, prompt in enumerate(prompts):
        filters = prompt.filters(default)
        key = ("boxes", number) if prompt.boxes else ("words", filters["threshold"])
        groups.setdefault(key, []).append(number)
    return list(groups.values())


@dataclass(frozen=True)
class _Measured:
    """A mask with its box and area, which take a pass over every pixel."""

    mask: BoolArray
    box: tuple[int, int, int, int]
    area: int

    def overlaps(self, other: _Measured, threshold: float) -> bool:
        """Whether the IoU of two masks is above a threshold. Most pairs are decided without comparing pixels."""
        left, top = max(self.box[0], other.box[0]), max(self.box[1], other.box[1])
        right, bottom = min(self.box[2], other.box[2]), min(self.box[3], other.box[3])
        if left >= right or top >= bottom:
            return False
        areas = self.area + other.area
        most = min(self.area, other.area, (right - left) * (bottom - top))
        if most / (areas - most) <= threshold:
            return False
        shared = int(np.count_nonzero(self.mask[top:bottom, left:right] & other.mask[top:bottom, left:right]))
        return shared / (areas - shared) > threshold


def _best_of_all(found: Iterator[Found], threshold: float) -> Iterator[Found]:
    """Drop instances whose mask has a higher IoU with an earlier one, even of another prompt."""
    kept: list[_Measured] = []
    for number, each in found:
        box = each.box
        if box is not None:
            measured = _Measured(each.mask, box, each.area)
            if any(measured.overlaps(other, threshold) for other in kept):
                continue
            kept.append(measured)
        yield number, each
