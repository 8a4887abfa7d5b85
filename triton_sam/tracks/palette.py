"""Label maps of tracked objects: each pixel holds the number of one object."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..masks.label_map import size_of_masks
from ..masks.resize import resize_logits
from .protocols import ObjectMask

MAX_OBJECT_ID = 255
"""The highest object id that a label map of 8 bits can hold; 0 is the background."""


def label_map(masks: Mapping[int, ObjectMask]) -> NDArray[np.uint8]:
    """Merge the masks of one image, so that each pixel belongs to one object at most.

    A pixel that lies in several masks goes to the object with the highest logit at this pixel (the low-resolution
    logits are resized to the image, as for the masks). Of objects with equal logits, and of objects without logits, the
    highest id gets the pixel. An object with logits wins against one without.

    Args:
        masks: object id, 1..255, to its mask; all masks have the same size. At least one.

    Returns:
        uint8 (H,W): the id of the object, 0 for background.

    Raises:
        InputError: an id is outside 1..255, there is no mask, or the masks differ in size.
    """
    width, height = size_of_masks(found.mask.shape for found in masks.values())
    labels = np.zeros((height, width), np.uint8)
    highest = np.full((height, width), -np.inf, np.float32)
    for object_id, found in sorted(masks.items()):
        if not 1 <= object_id <= MAX_OBJECT_ID:
            raise InputError(f"a label map holds the object ids 1..{MAX_OBJECT_ID}, not {object_id}: use other ids")
        if len(masks) == 1 or found.logits is None:
            wins = found.mask & np.isneginf(highest)
        else:
            logits = resize_logits(found.logits, (width, height))
            wins = found.mask & (logits >= highest)
            highest[wins] = logits[wins]
        labels[wins] = object_id
    return labels
