"""Masks as X-AnyLabeling's shapes."""

from __future__ import annotations

import math
import re
import secrets
from typing import Any

import numpy as np

from ...masks.polygons import SMALLEST_AREA, Outlines
from ...masks.rings import FloatPoints
from ...masks.segment import Segment
from ..problems import Problem
from .bridge import Lenient

LABEL = "AUTOLABEL_OBJECT"
"""X-AnyLabeling asks the user for a label when shapes have this one."""
FINENESS = 0.001
"""Maximum deviation of a simplified outline as a fraction of its length, unless the slider sets another."""
LEAST_TOLERANCE = 0.5
SMALLEST_SHARE_OF_MEAN = 0.2
"""Fraction of the mean area of an object's parts; X-AnyLabeling drops smaller parts (post_process() of its models)."""
MOST_GROUPS = 1_000_000


class Drawing(Lenient):
    epsilon_factor: float = FINENESS
    show_boxes: bool = False
    show_masks: bool = True

    def check(self) -> None:
        if not math.isfinite(self.epsilon_factor) or not 0 <= self.epsilon_factor <= 1:
            raise Problem(422, "epsilon_factor must lie between 0 and 1")


def shapes_of(segment: Segment, drawing: Drawing, label: str = LABEL, group: int | None = None) -> list[dict[str, Any]]:
    """Return a mask as shapes: a closed polygon for each part, and a rectangle if the caller requests it.

    Args:
        group: the object number; None: the shapes of an object with several parts share a random number.
    """
    score = min(1.0, max(0.0, segment.score))
    outlines = _outlines(segment, drawing.epsilon_factor) if drawing.show_masks else []
    shapes: list[dict[str, Any]] = []
    for ring in outlines:
        points = ring.tolist()
        shapes.append({"shape_type": "polygon", "points": [*points, points[0]]})
    if drawing.show_boxes and segment.box is not None:
        x1, y1, x2, y2 = map(float, segment.box)
        shapes.append({"shape_type": "rectangle", "points": [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]})
    if group is None and len(shapes) > 1:
        group = secrets.randbelow(MOST_GROUPS) + 1  # other objects of the file have groups too
    grouped = {} if group is None else {"group_id": group}
    return [{"label": label, "score": score, **grouped, **shape} for shape in shapes]


def words_of(text: str) -> list[str]:
    """Return the words in the window's text field, without duplicates."""
    texts = (each.strip() for each in re.split(r"[,.\n]", text))
    return list(dict.fromkeys(each for each in texts if each))


def _outlines(segment: Segment, fineness: float) -> list[FloatPoints]:
    """Return a mask's outlines without specks, simplified by a fraction of the longest outline's length."""
    outlines = Outlines(segment.mask)
    polygons = outlines.all(LEAST_TOLERANCE)
    if not polygons:
        return []
    tolerance = max(LEAST_TOLERANCE, fineness * max(_length(each.exterior) for each in polygons))
    least = SMALLEST_SHARE_OF_MEAN * sum(each.area for each in polygons) / len(polygons)
    return [each.exterior for each in outlines.main(tolerance, 0.0, max(least, SMALLEST_AREA))]


def _length(ring: FloatPoints) -> float:
    return float(np.linalg.norm(ring - np.roll(ring, 1, axis=0), axis=1).sum())
