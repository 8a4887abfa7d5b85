"""Regions that a Label Studio user drew with a smart tool: converted to prompts, and stored between calls.

Reference: label_studio_ml/examples/segment_anything_2_image of https://github.com/HumanSignal/label-studio-ml-backend,
and label_studio_sdk/converter/brush.py of https://github.com/HumanSignal/label-studio-sdk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import Field

from ..._common.checks import is_finite_number
from ..._common.lru import ByteLru
from ...annotate.prompts import mask_logits
from ...families.base import Family, Size
from ...masks.boxes import mask_to_box
from ...masks.cleanup import find_parts, innermost_points
from ...masks.rle import BoolArray
from ...wire.contract import MAX_OBJECTS
from ..problems import Problem
from .bridge import Lenient, Target, filled_polygon
from .brush_rle import decode_brush

KEYPOINT, RECTANGLE, TEXT = "keypointlabels", "rectanglelabels", "textarea"
BRUSH, POLYGON = "brushlabels", "polygonlabels"
MAX_NAME = 64
MAX_STROKES = 8
"""Maximum connected parts of a brush that become points, the largest first."""


class Region(Lenient):
    """A region that the user has drawn with a smart tool."""

    type: str = Field(max_length=64)
    value: dict[str, Any]
    is_positive: bool = True
    id: Any = None

    @property
    def name(self) -> str | None:
        """The region's id, if Label Studio's page generated it."""
        return self.id if isinstance(self.id, str) and 0 < len(self.id) <= MAX_NAME else None

    @property
    def label(self) -> str | None:
        labels = self.value.get(self.type)
        return labels[0] if isinstance(labels, list) and labels and isinstance(labels[0], str) else None


@dataclass(frozen=True)
class RequestedObject:
    """An object to segment.

    Args:
        label: the label of its region; None without a label.
        around: x1, y1, x2, y2 of its region in pixels. Points inside belong to the object.
    """

    target: Target
    label: str | None
    around: Sequence[float]


def drawn_prompt(region: Region, size: Size, family: Family) -> RequestedObject | None:
    """Return the object of a brush or a polygon; None if nothing is drawn. Large masks take some time.

    The mask is a prompt if the family accepts masks. A polygon surrounds its object, so it also gives a box. A
    stroke of a brush may cover only a part of the object, so it gives a point instead.
    """
    mask = _brush(region.value, size) if region.type == BRUSH else _polygon(region.value, size)
    box = mask_to_box(mask)
    if box is None:
        return None
    logits = mask_logits(mask, family) if family.takes_mask else None
    if region.type == POLYGON:
        return RequestedObject(Target(box=box, mask=logits), region.label, box)
    points = innermost_points(find_parts(mask), MAX_STROKES)
    return RequestedObject(Target(points, [1] * len(points), mask=logits), region.label, box)


def asked_of(
    regions: Sequence[Region], size: Size, drawn: Sequence[RequestedObject] = ()
) -> tuple[list[Target], list[str | None]]:
    """Return the objects that regions describe, and the label of each.

    Each rectangle and each drawn mask is an object. Points belong to the first rectangle or mask around them. The other
    points are one more object if one of them is in the foreground; otherwise they belong to the last object. Regions of
    other types are ignored.
    """
    objects = [*drawn, *(_boxed(each, size) for each in regions if each.type == RECTANGLE)]
    points = [(_point(each.value, size), each) for each in regions if each.type == KEYPOINT]
    owners = [_owner(point, objects) for point, _ in points]
    targets, labels = [each.target for each in objects], [each.label for each in objects]
    alone = [each for (_, each), owner in zip(points, owners, strict=True) if owner is None]
    if objects and not any(each.is_positive for each in alone):
        owners = [len(objects) - 1 if owner is None else owner for owner in owners]
    elif alone:
        targets.append(Target())
        labels.append(
            next((each.label for each in reversed(alone) if each.is_positive and each.label), alone[-1].label)
        )
    for number, target in enumerate(targets):
        owner = number if number < len(objects) else None
        inside = [each for each, its in zip(points, owners, strict=True) if its == owner]
        places = [*target.points, *(point for point, _ in inside)]
        marks = [*target.labels, *(int(each.is_positive) for _, each in inside)]
        targets[number] = replace(target, points=places, labels=marks)
    return targets, labels


def words_of(regions: list[Region]) -> list[str]:
    """Return the words of a text area, separated by commas or line breaks."""
    found = []
    for each in regions:
        texts = each.value.get("text") if each.type == TEXT else None
        for text in texts if isinstance(texts, list) else [texts]:
            if isinstance(text, str):
                found += [word.strip() for word in text.replace("\n", ",").split(",")]
    return [word for word in found if word]


def _brush(value: Mapping[str, Any], size: Size) -> BoolArray:
    code = value.get("rle")
    if not isinstance(code, list) or not code:
        raise Problem(422, "a brush needs its mask in `rle`, the list of bytes of Label Studio's code")
    try:
        return decode_brush(code, size)
    except ValueError as error:
        raise Problem(422, f"rle: {error}") from None


def _polygon(value: Mapping[str, Any], size: Size) -> BoolArray:
    corners = value.get("points")
    if not isinstance(corners, list):
        raise Problem(422, "a polygon needs its corners in `points`")
    try:
        ring = np.array(corners, np.float64)
    except (TypeError, ValueError, OverflowError):
        ring = np.empty(0)
    if ring.shape != (len(corners), 2) or not np.isfinite(ring).all():
        raise Problem(422, "a corner of a polygon is x, y, two numbers in percent")
    return filled_polygon(np.clip(ring, 0, 100) * np.array(size) / 100, size)


def _boxed(region: Region, size: Size) -> RequestedObject:
    x, y, width, height = _numbers(region.value, "x", "y", "width", "height")
    left, top = x * size[0] / 100, y * size[1] / 100
    box = [left, top, left + width * size[0] / 100, top + height * size[1] / 100]
    return RequestedObject(Target(box=box), region.label, box)


def _owner(point: list[float], objects: Sequence[RequestedObject]) -> int | None:
    """Return the index of the first object whose region contains a point."""
    x, y = point
    boxes = (each.around for each in objects)
    return next((place for place, (x1, y1, x2, y2) in enumerate(boxes) if x1 <= x <= x2 and y1 <= y <= y2), None)


def _point(value: Mapping[str, Any], size: Size) -> list[float]:
    x, y = _numbers(value, "x", "y")
    return [x * size[0] / 100, y * size[1] / 100]


def _numbers(value: Mapping[str, Any], *names: str) -> list[float]:
    found = [value.get(name) for name in names]
    numbers = [float(each) for each in found if is_finite_number(each)]
    if len(numbers) < len(names):
        raise Problem(422, f"a region needs the numbers {', '.join(names)}, in percent")
    return numbers


MOST_TASKS = 1024
SECONDS = 600.0
"""Seconds for which a task's regions are stored."""
MAX_LABEL = 256
ACCEPTED = ("", None)
"""The group of points whose masks a user has accepted: the page then drops the points."""
NUMBERS = ("x", "y", "width", "height")


@dataclass
class _Kept:
    until: float
    groups: dict[tuple[str, str | None], list[Region]] = field(default_factory=dict)

    @property
    def regions(self) -> list[Region]:
        return [each for group in self.groups.values() for each in group]


class TaskMemory:
    """The points and boxes of the last calls for each task: Label Studio sends only the regions of one tag and label.

    So a background point arrives without the box that it corrects. The page still shows the regions of other tags and
    labels while a call has one of their regions, or only background points, which cannot be prompts without an object.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tasks: ByteLru[Hashable, _Kept] = ByteLru(MOST_TASKS)

    def joined(self, task: Hashable, regions: Sequence[Region]) -> list[Region]:
        """Return the earlier regions that belong to the call, followed by the call's regions. Store them all."""
        if not all(_is_kept(each) for each in regions):
            return list(regions)  # a program sent these; it sends complete prompts
        kept = self._tasks.get(task)
        self._tasks.remove(task)
        if kept is None or kept.until < self._clock():
            kept = _Kept(0.0)
        is_background = all(map(_is_background, regions))
        if is_background and not kept.groups:
            raise Problem(422, "a background point needs an object: first set a point on it, or draw a box around it")
        names = {each.name for each in regions if each.name}
        if not is_background and not any(each.name in names for each in kept.regions):
            kept = _Kept(0.0)
        groups: dict[tuple[str, str | None], list[Region]] = {}
        for each in regions:
            groups.setdefault((each.type, each.label), []).append(each)
        others = {name: group for name, group in kept.groups.items() if name not in groups}
        if is_background and all(_is_background(each) for group in others.values() for each in group):
            others = {ACCEPTED: [each for each in kept.regions if not _is_background(each)]}  # the page dropped them
        kept.groups = {**others, **{name: [_slim(each) for each in group] for name, group in groups.items()}}
        if len(kept.regions) <= MAX_OBJECTS:
            kept.until = self._clock() + SECONDS
            self._tasks.put(task, kept)
        return [*(each for group in others.values() for each in group), *regions]


def _is_background(region: Region) -> bool:
    return region.type == KEYPOINT and not region.is_positive


def _is_kept(region: Region) -> bool:
    """Whether a region can be stored: a point or a box with finite numbers, and a label of a normal length."""
    names = {KEYPOINT: NUMBERS[:2], RECTANGLE: NUMBERS}.get(region.type, ())
    return (
        bool(names)
        and all(is_finite_number(region.value.get(name)) for name in names)
        and len(region.label or "") <= MAX_LABEL
    )


def _slim(region: Region) -> Region:
    """Return a region with only the members that are read."""
    value: dict[str, Any] = {name: region.value[name] for name in NUMBERS if is_finite_number(region.value.get(name))}
    if region.label is not None:
        value[region.type] = [region.label]
    return Region(type=region.type, value=value, is_positive=region.is_positive, id=region.name)
