"""Masks in the forms of CVAT's functions: rows of 0 and 1, and the pixels of a box."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...families.base import Size
from ...masks.boxes import mask_to_box
from ...masks.polygons import mask_to_polygons
from ...masks.rle import BoolArray
from ...masks.segment import Segment
from ..problems import Problem

COMMA, ZERO = ord(","), ord("0")


def interactor_json(segment: Segment) -> bytes:
    """Return an interactor's response: ``mask``, rows of 0 and 1, and ``points``, the largest outline.

    The JSON is written as bytes, because a list of a few million numbers would take seconds.
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
    """Return the pixels of a mask within its box, row by row, followed by the box x1, y1, x2, y2.

    The corners are pixels inside the box, as in CVAT's masks. Reference: to_cvat_mask() of CVAT's functions.
    """
    if segment.box is None:
        return []
    x1, y1, x2, y2 = segment.box
    bits: npt.NDArray[Any] = segment.mask[y1:y2, x1:x2].astype(np.uint8)
    return [*bits.ravel().tolist(), x1, y1, x2 - 1, y2 - 1]


def box_runs(mask: BoolArray) -> list[float]:
    """Return the run lengths of a mask within its box, row by row, followed by the box x1, y1, x2, y2.

    The first run is background. The corners are pixels inside the box. Reference: encode_mask() of CVAT's SDK.
    """
    box = mask_to_box(mask)
    if box is None:
        return []
    x1, y1, x2, y2 = box
    flat = mask[y1:y2, x1:x2].ravel()
    edges = np.concatenate(([0], np.flatnonzero(flat[1:] != flat[:-1]) + 1, [flat.size]))
    runs = np.diff(edges).tolist()
    return [*([0] if flat[0] else []), *runs, x1, y1, x2 - 1, y2 - 1]


def mask_of_points(points: list[float], size: Size) -> BoolArray:
    """Return the mask (H,W) of a mask in CVAT: its runs or its pixels, followed by the corners of its box."""
    width, height = size
    values = np.asarray(points, np.float64)
    if len(values) < 5 or not np.isfinite(values).all() or (values < 0).any() or (values > width * height).any():
        raise Problem(422, "a mask is made of the lengths of its runs, and of x1, y1, x2, y2 of its box")
    *_, x1, y1, x2, y2 = values.astype(np.int64).tolist()
    runs = values[:-4].astype(np.int64)
    if x1 > x2 or y1 > y2 or x2 >= width or y2 >= height:
        raise Problem(422, "the box of a mask lies within the image")
    shape = y2 - y1 + 1, x2 - x1 + 1
    pixels = shape[0] * shape[1]
    is_bits = len(runs) == pixels and runs.max() <= 1
    if not is_bits and runs.sum() != pixels:
        raise Problem(422, f"the runs of a mask add up to the {pixels} pixels of its box")
    flat = runs.astype(bool) if is_bits else np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    mask = np.zeros((height, width), bool)
    mask[y1 : y2 + 1, x1 : x2 + 1] = flat.reshape(shape)
    return mask
