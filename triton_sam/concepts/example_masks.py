"""Example masks of a search for concepts. The model takes boxes alone, so each mask stands for its tight box.

The reference (Sam3Processor in transformers) takes boxes only, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InputError, PromptError
from ..families.base import Size
from ..masks.boxes import mask_to_box
from ..masks.rle import rle_to_box


def boxes_of_masks(masks: Any, labels: Any) -> tuple[list[tuple[int, int, int, int]], list[Any], Size]:
    """Return the boxes of masks, their labels, and the width and height that all masks have.

    Args:
        masks: one or more masks: arrays (H,W), foreground where not 0, or COCO RLE.
        labels: one label for each mask, 1 or 0; None: all are 1.

    Raises:
        PromptError: there is no mask, one is empty or unreadable, sizes differ, or the labels do not fit.
    """
    single = isinstance(masks, Mapping) or (isinstance(masks, np.ndarray) and masks.ndim == 2)
    given = [masks] if single else masks
    if not isinstance(given, (list, tuple, np.ndarray)) or not len(given):
        raise PromptError("masks must be a list of arrays (H,W) or of COCO RLE, at least one")
    try:
        found = [_read(each) for each in given]
    except (InputError, TypeError, ValueError) as error:
        raise PromptError(f"an example mask cannot be read: {error}") from error
    boxes = [box for box, _ in found if box is not None]
    if len(boxes) < len(found):
        raise PromptError("an example mask is empty: it shows nothing")
    sizes = {size for _, size in found}
    if len(sizes) > 1:
        raise PromptError("the example masks have different sizes: all of them belong to one image")
    return boxes, _kinds(labels, len(boxes)), sizes.pop()


def _kinds(labels: Any, count: int) -> list[Any]:
    """Return the label of each mask.

    Raises:
        PromptError: they are no labels, or not as many as the masks.
    """
    if labels is None:
        return [1] * count
    try:
        kinds = np.atleast_1d(np.asarray(labels, np.float64))
    except (TypeError, ValueError, OverflowError):
        kinds = np.empty((0, 0))
    if kinds.ndim != 1:
        raise PromptError("mask_labels must be numbers, one for each mask")
    if len(kinds) != count:
        raise PromptError(f"mask_labels must have one label for each of the {count} masks, not {len(kinds)}")
    if not np.isin(kinds, (0, 1)).all():
        raise PromptError("mask_labels must be 1 (an instance) or 0 (not this)")
    found: list[Any] = kinds.tolist()
    return found


def _read(mask: Any) -> tuple[tuple[int, int, int, int] | None, Size]:
    if isinstance(mask, Mapping):
        box = rle_to_box(mask)  # without its pixels, because a few bytes may stand for very many
        height, width = mask["size"]
        return box, (int(width), int(height))
    pixels = np.asarray(mask)
    height, width = pixels.shape if pixels.ndim == 2 else (0, 0)
    return mask_to_box(pixels), (width, height)
