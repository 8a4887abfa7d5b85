"""Which instances that a search finds in a frame of a video are new, and which are tracked already.

The rules and their numbers are those of Sam3VideoModel in transformers 5 (``_associate_det_trk``, ``nms_masks``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..masks.compare import intersection_over_union
from ..masks.rle import BoolArray
from .instances import Instance

THRESHOLD = 0.5
"""An instance of a frame needs a higher score."""
NEW_THRESHOLD = 0.7
"""Beside tracked objects, a new object needs a score of at least this."""
SAME_OBJECT = 0.1
"""An instance is a tracked object of its text if the IoU of their masks is at least this."""
DOUBLE = 0.1
"""An instance goes if its mask has a higher IoU with that of a better one of the same text."""


def without_doubles(found: Sequence[Instance]) -> list[Instance]:
    """Return the instances that have a mask, and do not overlap a better one of the same text.

    Args:
        found: the instances of one frame; of each text the best first.
    """
    kept: list[Instance] = []
    for each in found:
        rivals = [other.mask for other in kept if other.object_index == each.object_index]
        if each.area and all(intersection_over_union(each.mask, mask) <= DOUBLE for mask in rivals):
            kept.append(each)
    return kept


def new_instances(
    found: Sequence[Instance], tracked: Sequence[tuple[int, BoolArray]], new_threshold: float = NEW_THRESHOLD
) -> list[Instance]:
    """Return the instances of a frame that are not a tracked object. Without tracked objects, these are all.

    Args:
        tracked: of each tracked object the index of its text and its mask (H,W) in this frame, which may be empty.
    """
    if not tracked:
        return list(found)
    return [each for each in found if each.score >= new_threshold and not _is_tracked(each, tracked)]


def _is_tracked(instance: Instance, tracked: Sequence[tuple[int, BoolArray]]) -> bool:
    masks = (mask for index, mask in tracked if index == instance.object_index)
    return any(intersection_over_union(instance.mask, mask) >= SAME_OBJECT for mask in masks)
