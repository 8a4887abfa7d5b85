"""The regions of earlier calls: Label Studio sends only the regions of one tag and one label.

So a background point arrives without the box that it corrects. The page still shows the regions of other tags and
labels while a call has one of their regions, or only background points, which cannot be prompts without an object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..._common.checks import is_finite_number
from ..._common.lru import ByteLru
from ...wire.contract import MAX_OBJECTS
from ..problems import Problem
from .task_regions import KEYPOINT, RECTANGLE, Region

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
    """The points and boxes of the last calls for each task."""

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
