"""Masks as CVAT's functions answer them: rows of 0 and 1, and the bits of a box."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...masks.polygons import mask_to_polygons
from ...masks.rle import BoolArray
from ...masks.segment import Segment

COMMA, ZERO = ord(","), ord("0")


def interactor_json(segment: Segment) -> bytes:
    """Return the answer of an interactor: ``mask``, rows of 0 and 1, and ``points``, the largest outline.

    Written as bytes at once, since a list of a few million numbers would take seconds.
    """
    rings = mask_to_polygons(segment.mask)
    points = np.reshape(rings[0], (-1, 2)).tolist() if rings else []
    return b'{"mask":' + rows_json(segment.mask) + b',"points":' + repr(points).replace(" ", "").encode() + b"}"


def rows_json(mask: BoolArray) -> bytes:
    """Return a mask (H,W) as JSON: a list of rows of 0 and 1."""
    height, width = mask.shape
    text = np.full((height, 2 * width + 2), COMMA, np.uint8)
    text[:, 0] = ord("[")
    text[:, 1 : 2 * width : 2] = mask + np.uint8(ZERO)
    text[:, 2 * width] = ord("]")
    return b"[" + text.tobytes()[:-1] + b"]"


def box_bits(segment: Segment) -> list[int]:
    """Return the pixels of a mask within its box, row by row, and then x1, y1, x2, y2 of that box.

    The corners are pixels inside the box, as in CVAT's masks. Reference: to_cvat_mask() of CVAT's functions.
    """
    if segment.box is None:
        return []
    x1, y1, x2, y2 = segment.box
    bits: npt.NDArray[Any] = segment.mask[y1:y2, x1:x2].astype(np.uint8)
    return [*bits.ravel().tolist(), x1, y1, x2 - 1, y2 - 1]
