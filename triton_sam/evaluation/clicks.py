"""A simulated user: where the next click goes, and the box that is drawn.

The rules are those of the literature on interactive segmentation, so that figures can be compared: Sofiiuk, Petrov,
Konushin, "Reviving Iterative Training with Mask Guidance for Interactive Segmentation" (RITM), 2021; Kirillov et al.,
"Segment Anything", 2023, section 7.1; Ravi et al., "SAM 2", 2024, whose code has the rule of the next click as
sam2.modeling.sam2_utils.sample_one_point_from_error_center.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._common.extras import missing
from ..errors import InputError
from ..families.base import LABEL_BACKGROUND, LABEL_FOREGROUND, FloatArray
from ..masks.rle import BoolArray
from ..masks.segment import mask_to_box

try:
    from scipy import ndimage
except ImportError as error:
    raise missing("simulating clicks needs", "evaluate", error) from error

_MAX_JITTER = 20.0  # pixels of the 1024 frame, as SAM is trained
_FRAME = 1024


@dataclass(frozen=True)
class Click:
    """One click.

    Args:
        x: column of the pixel, from 0.
        y: row of the pixel, from 0.
        label: 1 foreground, 0 background.
    """

    x: int
    y: int
    label: int


def first_click(truth: BoolArray) -> Click:
    """Click the pixel of an object that lies farthest from its border; bool (H,W).

    The edge of the picture counts as border. Of several such pixels, the topmost and then leftmost one is taken.

    Raises:
        InputError: the mask is empty.
    """
    depth, x, y = _deepest(truth, ())
    if depth == 0:
        raise InputError("no click fits into an empty mask")
    return Click(x, y, LABEL_FOREGROUND)


def next_click(truth: BoolArray, mask: BoolArray, clicks: Sequence[Click] = ()) -> Click | None:
    """Click the centre of the largest error: foreground on what is missing, background on what is too much.

    As in RITM and SAM 2, an error region is as large as the largest circle that fits into it, and the click goes to the
    middle of that circle; of two equal ones, to what is too much. A pixel is never clicked twice.

    Args:
        truth: bool (H,W), the object.
        mask: bool (H,W), the current answer.
        clicks: made so far.

    Returns:
        The click, or None when there is no error left that has not been clicked.
    """
    missing, missing_x, missing_y = _deepest(truth & ~mask, clicks)
    surplus, surplus_x, surplus_y = _deepest(mask & ~truth, clicks)
    if missing == surplus == 0:
        return None
    if missing > surplus:
        return Click(missing_x, missing_y, LABEL_FOREGROUND)
    return Click(surplus_x, surplus_y, LABEL_BACKGROUND)


def tight_box(truth: BoolArray) -> FloatArray:
    """Return the tight box of an object as x1,y1,x2,y2 in pixel corners, float32 (4,); see masks.mask_to_box.

    Raises:
        InputError: the mask is empty.
    """
    box = mask_to_box(truth)
    if box is None:
        raise InputError("no box fits around an empty mask")
    return np.array(box, np.float32)


def shaken_box(truth: BoolArray, jitter: float, rng: np.random.Generator) -> FloatArray:
    """Return a box as a hasty hand draws it: each side moved at random, as SAM's training does it (appendix A).

    Args:
        truth: bool (H,W), the object.
        jitter: standard deviation of each side's offset, as a share of the box's width or height. An offset is cut at
            20 pixels of the 1024 frame, and at a third of the box, which keeps its corners in order.
        rng: the source of randomness.

    Returns:
        float32 (4,), x1,y1,x2,y2 within the picture.
    """
    height, width = truth.shape
    box = tight_box(truth)
    sides = np.tile(box[2:] - box[:2], 2)
    frame = np.array([width, height, width, height], np.float32)
    most = np.minimum(_MAX_JITTER * frame / _FRAME, sides / 3)
    offset = np.clip(rng.normal(0, 1, 4) * jitter * sides, -most, most)
    shaken: FloatArray = np.clip(box + offset, 0, frame).astype(np.float32)
    return shaken


def _deepest(region: BoolArray, clicks: Sequence[Click]) -> tuple[float, int, int]:
    """Return (distance to the border, x, y) of the innermost pixel without a click; 0 when there is none."""
    bounds = mask_to_box(region)
    if bounds is None:
        return 0.0, 0, 0
    left, top, right, bottom = bounds
    # Distances inside the region only depend on the region's own box and one pixel around it.
    window = np.pad(region[top:bottom, left:right], 1)
    depth: NDArray[np.float64] = ndimage.distance_transform_edt(window)[1:-1, 1:-1]
    for click in clicks:
        if left <= click.x < right and top <= click.y < bottom:
            depth[click.y - top, click.x - left] = 0
    row, column = divmod(int(depth.argmax()), depth.shape[1])
    return float(depth[row, column]), left + column, top + row
