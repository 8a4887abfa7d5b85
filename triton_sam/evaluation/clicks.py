"""A simulated user, who clicks and draws boxes.

The rules follow the literature on interactive segmentation, so that the metrics are comparable with published ones:
Sofiiuk, Petrov, Konushin, "Reviving Iterative Training with Mask Guidance for Interactive Segmentation" (RITM), 2021;
Kirillov et al., "Segment Anything", 2023, section 7.1; Ravi et al., "SAM 2", 2024, whose code implements the rule of
the next click in sam2.modeling.sam2_utils.sample_one_point_from_error_center.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._common.extras import missing
from ..errors import InputError
from ..families.base import LABEL_BACKGROUND, LABEL_FOREGROUND, FloatArray
from ..masks.boxes import mask_to_box
from ..masks.rle import BoolArray

try:
    from scipy import ndimage
except ImportError as error:
    raise missing("simulating clicks needs", "evaluate", error) from error

_MAX_JITTER = 20.0  # pixels of the 1024 frame, as in the training of SAM (Kirillov et al., appendix A)
_FRAME = 1024


@dataclass(frozen=True)
class Click:
    x: int
    y: int
    label: int


def first_click(truth: BoolArray) -> Click:
    """Return a click on the pixel of an object, bool (H,W), that is farthest from the object's border.

    The edge of the image counts as border. Of several such pixels, the topmost is chosen, then the leftmost.
    """
    depth, x, y = _innermost_pixel(truth, ())
    if depth == 0:
        raise InputError("an empty mask has no pixel to click on")
    return Click(x, y, LABEL_FOREGROUND)


def next_click(truth: BoolArray, mask: BoolArray, clicks: Sequence[Click] = ()) -> Click | None:
    """Return a click on the centre of the largest error of a mask, both bool (H,W); None if no pixel is left to click.

    A click on missing pixels is a foreground click, a click on surplus pixels a background click. As in RITM and SAM 2,
    the size of an error region is the radius of its largest inscribed circle, and the click is the centre of this
    circle. If the largest missing and surplus regions are equal, the surplus region is clicked.
    """
    missing_depth, missing_x, missing_y = _innermost_pixel(truth & ~mask, clicks)
    surplus_depth, surplus_x, surplus_y = _innermost_pixel(mask & ~truth, clicks)
    if missing_depth == surplus_depth == 0:
        return None
    if missing_depth > surplus_depth:
        return Click(missing_x, missing_y, LABEL_FOREGROUND)
    return Click(surplus_x, surplus_y, LABEL_BACKGROUND)


def tight_box(truth: BoolArray) -> FloatArray:
    """Return the smallest box around a mask, bool (H,W), as float32 x1,y1,x2,y2 in pixels; see masks.mask_to_box."""
    box = mask_to_box(truth)
    if box is None:
        raise InputError("an empty mask has no box")
    return np.array(box, np.float32)


def shaken_box(truth: BoolArray, jitter: float, rng: np.random.Generator) -> FloatArray:
    """Return an inaccurate box, with every side shifted at random as in the training of SAM (appendix A).

    Args:
        truth: bool (H,W), the ground-truth mask of the object.
        jitter: standard deviation of the offset of each side, as a share of the box's width or height. Offsets are
            limited to 20 pixels of the 1024 frame, and to a third of the box to keep the corners in order.

    Returns:
        float32 (4,), x1,y1,x2,y2 in pixels, inside the image.
    """
    height, width = truth.shape
    box = tight_box(truth)
    sides = np.tile(box[2:] - box[:2], 2)
    frame = np.array([width, height, width, height], np.float32)
    limit = np.minimum(_MAX_JITTER * frame / _FRAME, sides / 3)
    offset = np.clip(rng.normal(0, 1, 4) * jitter * sides, -limit, limit)
    shaken: FloatArray = np.clip(box + offset, 0, frame).astype(np.float32)
    return shaken


def _innermost_pixel(region: BoolArray, clicks: Sequence[Click]) -> tuple[float, int, int]:
    """Return (distance to the border, x, y) of the innermost unclicked pixel; (0, 0, 0) if none exists."""
    bounds = mask_to_box(region)
    if bounds is None:
        return 0.0, 0, 0
    left, top, right, bottom = bounds
    # For speed: distances inside the region depend only on its bounding box and a border of one pixel.
    window = np.pad(region[top:bottom, left:right], 1)
    depth: NDArray[np.float64] = ndimage.distance_transform_edt(window)[1:-1, 1:-1]
    for click in clicks:
        if left <= click.x < right and top <= click.y < bottom:
            depth[click.y - top, click.x - left] = 0
    row, column = divmod(int(depth.argmax()), depth.shape[1])
    return float(depth[row, column]), left + column, top + row
