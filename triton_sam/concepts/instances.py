"""Turns the outputs of the detector into instances with boxes, scores and full-size masks.

Reference: Sam3ImageProcessor.post_process_instance_segmentation in transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..families.base import FloatArray, Size
from ..masks.boxes import intersection_over_union, suppressed
from ..masks.resize import full_size_masks
from ..masks.rle import BoolArray
from ..masks.segment import Segment
from .query import Query

IntArray = npt.NDArray[np.intp]
THRESHOLD = 0.5
"""Instances in a frame need a higher score."""
NEW_THRESHOLD = 0.7
"""Minimum score of a new object in a frame with tracked objects."""
SAME_OBJECT = 0.1
"""Minimum IoU of the masks at which an instance is a tracked object of its text."""
DOUBLE = 0.1
"""An instance is dropped if its mask has a higher IoU with that of a better instance of the same text."""


@dataclass(frozen=True, eq=False)
class Instance(Segment):
    """One instance of a concept. ``object_index`` is the index of the text, and ``candidate`` counts its instances.

    ``label`` is empty if only example boxes were given.

    Args:
        found_box: the model's box: x1, y1, x2, y2 in pixels of the image. It may differ from ``box``, the box of the
            mask.
    """

    found_box: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def __repr__(self) -> str:
        height, width = self.mask.shape
        return f"Instance({self.label!r}, {width}x{height}, {self.area} px, box={self.box}, score={self.score:.2f})"


def scores_of(outputs: Mapping[str, npt.NDArray[Any]]) -> FloatArray:
    """Return the scores (P,Q) of all proposals: probability of the concept's presence times that of the proposal.

    Args:
        outputs: ``pred_logits`` (P,Q) and ``presence_logits`` (P,1) of the detector.
    """
    return sigmoid(outputs["pred_logits"]) * sigmoid(outputs["presence_logits"])


def choose(scores: FloatArray, boxes: FloatArray, query: Query) -> IntArray:
    """Return the indices of the proposals that are instances, sorted by score, highest first."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > query.threshold]
    if query.nms is not None:
        order = order[suppressed(boxes[order], scores[order], query.nms)]
    return order if query.limit is None else order[: query.limit]


def instance_mask(logits: FloatArray, size: Size, threshold: float) -> BoolArray:
    """Return the mask (H,W) of an instance.

    As in the reference, the probabilities are resized, not the logits.
    """
    (mask,) = full_size_masks(sigmoid(logits), size, None, (threshold,))
    return mask


def to_pixels(box: FloatArray, size: Size) -> tuple[float, float, float, float]:
    """Return a box (4,) of the detector, in 0..1, as x1, y1, x2, y2 in pixels of the image."""
    x1, y1, x2, y2 = (float(value) for value in box * np.tile(np.array(size, np.float32), 2))
    return x1, y1, x2, y2


def sigmoid(logits: npt.NDArray[Any]) -> FloatArray:
    """Return 1 / (1 + exp(-x)) in float32 without overflow."""
    small = np.exp(-np.abs(logits, dtype=np.float32))
    result: FloatArray = np.where(logits >= 0, 1, small) / (1 + small)
    return result.astype(np.float32)


def without_doubles(found: Sequence[Instance]) -> list[Instance]:
    """Return the instances that have a mask and do not overlap a better instance of the same text.

    Args:
        found: the instances of one frame; those of each text are sorted by score, highest first.
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
    """Return the instances of a frame that are not a tracked object; all instances without tracked objects.

    Args:
        tracked: for each tracked object, the index of its text and its mask (H,W) in this frame, which may be empty.
    """
    if not tracked:
        return list(found)
    return [each for each in found if each.score >= new_threshold and not _is_tracked(each, tracked)]


def _is_tracked(instance: Instance, tracked: Sequence[tuple[int, BoolArray]]) -> bool:
    masks = (mask for index, mask in tracked if index == instance.object_index)
    return any(intersection_over_union(instance.mask, mask) >= SAME_OBJECT for mask in masks)
