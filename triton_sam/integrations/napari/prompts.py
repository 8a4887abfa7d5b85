"""The points and boxes of layers, sorted by plane and object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...families.base import Size
from .sources import Plane

Key = tuple[Plane, int]
"""A plane, and the number of an object in it, from 1."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of an object in a plane.

    Args:
        points: x, y in pixels of the plane; the centre of the first pixel is 0, 0.
        labels: 1 for each point inside the object, 0 for each outside.
    """

    points: tuple[tuple[float, float], ...] = ()
    labels: tuple[int, ...] = ()
    box: tuple[float, float, float, float] | None = None

    def with_point(self, x: float, y: float, label: int) -> Prompt:
        return Prompt((*self.points, (x, y)), (*self.labels, label), self.box)

    def within(self, size: Size) -> Prompt:
        """Return the prompt, moved into an image of this width and height."""
        high = np.array(size, float) - 1
        points = np.clip(np.reshape(self.points, (-1, 2)), 0, high).tolist()
        box = None
        if self.box is not None:
            x1, y1, x2, y2 = np.clip(np.reshape(self.box, (2, 2)), 0, np.array(size, float)).ravel().tolist()
            box = (x1, y1, x2, y2)
        return Prompt(tuple((x, y) for x, y in points), self.labels, box)

    def arguments(self) -> dict[str, Any]:
        """Return the prompt as arguments of the clients, without empty parts."""
        points = {"point_coords": self.points, "point_labels": self.labels} if self.points else {}
        return {**points, **({} if self.box is None else {"box": self.box})}


def collect(
    points: npt.ArrayLike,
    point_features: Mapping[str, Sequence[Any]],
    boxes: Iterable[npt.ArrayLike],
    box_features: Mapping[str, Sequence[Any]],
) -> dict[Key, Prompt]:
    """Return the prompts of two layers.

    Args:
        points: (N,D), coordinates in axis order: stack indexes, row, column.
        point_features: ``object``, the number of the object of each point, and ``label``, 1 inside and 0 outside.
        boxes: (V,D) vertices of each rectangle. Only an object's last rectangle in a plane counts.
    """
    found: dict[Key, Prompt] = {}
    rows = np.asarray(points, float)
    for row, number, label in zip(rows, point_features["object"], point_features["label"], strict=True):
        key = _plane(row), int(number)
        found[key] = found.get(key, Prompt()).with_point(float(row[-1]), float(row[-2]), int(label))
    for each, number in zip(boxes, box_features["object"], strict=True):
        vertices = np.asarray(each, float)
        key = _plane(vertices[0]), int(number)
        (y1, x1), (y2, x2) = vertices[:, -2:].min(axis=0).tolist(), vertices[:, -2:].max(axis=0).tolist()
        known = found.get(key, Prompt())
        found[key] = Prompt(known.points, known.labels, (x1, y1, x2, y2))
    return found


def differences(before: Mapping[Key, Prompt], after: Mapping[Key, Prompt]) -> tuple[dict[Key, Prompt], list[Key]]:
    """Return new or changed prompts, and the keys of removed ones."""
    changed = {key: prompt for key, prompt in after.items() if before.get(key) != prompt}
    return changed, [key for key in before if key not in after]


def _plane(place: npt.NDArray[np.float64]) -> Plane:
    return tuple(round(value) for value in place[:-2].tolist())
