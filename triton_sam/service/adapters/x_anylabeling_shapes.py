"""Masks as X-AnyLabeling's shapes."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from ...masks.polygons import mask_to_polygons
from ...masks.segment import Segment
from ..problems import Problem
from .bridge import Lenient

LABEL = "AUTOLABEL_OBJECT"
"""X-AnyLabeling asks its user for the label of shapes with this one."""
FINENESS = 0.001
"""The share of its length by which an outline may be simplified, unless the slider says another one."""
LEAST_TOLERANCE = 0.5


class Drawing(Lenient):
    """How masks are drawn."""

    epsilon_factor: float = FINENESS
    show_boxes: bool = False
    show_masks: bool = True

    def check(self) -> None:
        """Refuse a fineness that is no share.

        Raises:
            Problem: 422.
        """
        if not math.isfinite(self.epsilon_factor) or not 0 <= self.epsilon_factor <= 1:
            raise Problem(422, "epsilon_factor must lie between 0 and 1")


def shapes_of(segment: Segment, drawing: Drawing, label: str = LABEL, **members: Any) -> list[dict[str, Any]]:
    """Return a mask as shapes: a closed polygon for each part, and a rectangle if the caller wants it.

    Args:
        segment: the mask.
        drawing: how it is drawn.
        label: the label of the shapes.
        members: further members of each shape.
    """
    score = min(1.0, max(0.0, segment.score))
    shared = {"label": label, "score": score, **members}
    shapes = []
    if drawing.show_masks:
        for ring in _outlines(segment, drawing.epsilon_factor):
            points = np.reshape(ring, (-1, 2)).tolist()
            shapes.append({**shared, "shape_type": "polygon", "points": [*points, points[0]]})
    if drawing.show_boxes and segment.box is not None:
        x1, y1, x2, y2 = map(float, segment.box)
        corners = [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
        shapes.append({**shared, "shape_type": "rectangle", "points": corners})
    return shapes


def words_of(text: str) -> list[str]:
    """Return the words in the window's text field, each once."""
    texts = (each.strip() for each in re.split(r"[,.\n]", text))
    return list(dict.fromkeys(each for each in texts if each))


def _outlines(segment: Segment, fineness: float) -> list[list[float]]:
    """Return the rings of a mask, simplified by a share of the length of the longest."""
    rings = mask_to_polygons(segment.mask, LEAST_TOLERANCE)
    tolerance = fineness * max(map(_length, rings), default=0.0)
    return rings if tolerance <= LEAST_TOLERANCE else mask_to_polygons(segment.mask, tolerance)


def _length(ring: list[float]) -> float:
    points = np.reshape(ring, (-1, 2))
    return float(np.linalg.norm(points - np.roll(points, 1, axis=0), axis=1).sum())
