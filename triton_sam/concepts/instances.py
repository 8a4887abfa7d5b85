"""From the outputs of the detector to instances with boxes, scores and full-size masks.

Reference: Sam3ImageProcessor.post_process_instance_segmentation in transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..families.base import FloatArray, Size
from ..masks.boxes import suppressed
from ..masks.resize import resize_logits
from ..masks.rle import BoolArray
from ..masks.segment import Segment
from .query import Query


@dataclass(frozen=True, eq=False)
class Instance(Segment):
    """One instance of a concept. ``object_index`` is the index of the text, and ``candidate`` counts its instances.

    ``label`` is empty if example boxes alone found it.

    Args:
        found_box: the box that the model gives it: x1, y1, x2, y2 in pixels of the image. It may differ from ``box``,
            which is that of the mask.
    """

    found_box: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def __repr__(self) -> str:
        height, width = self.mask.shape
        return f"Instance({self.label!r}, {width}x{height}, {self.area} px, box={self.box}, score={self.score:.2f})"


IntArray = npt.NDArray[np.intp]


def scores_of(outputs: Mapping[str, npt.NDArray[Any]]) -> FloatArray:
    """Return the scores (P,Q) of all proposals: the probability that the concept is there, times that of the proposal.

    Args:
        outputs: ``pred_logits`` (P,Q) and ``presence_logits`` (P,1) of the detector.
    """
    return sigmoid(outputs["pred_logits"]) * sigmoid(outputs["presence_logits"])


def choose(scores: FloatArray, boxes: FloatArray, query: Query) -> IntArray:
    """Return the indices of the proposals that are instances, the best first."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > query.threshold]
    if query.nms is not None:
        order = order[suppressed(boxes[order], scores[order], query.nms)]
    return order if query.limit is None else order[: query.limit]


def full_size_mask(logits: FloatArray, size: Size, threshold: float) -> BoolArray:
    """Return the mask (H,W) of an instance.

    As in the reference, the probabilities are resized, and not the logits.
    """
    mask: BoolArray = resize_logits(sigmoid(logits), size) > threshold
    return mask


def to_pixels(box: FloatArray, size: Size) -> tuple[float, float, float, float]:
    """Return a box (4,) of the detector, in 0..1, as x1, y1, x2, y2 in pixels of the image."""
    x1, y1, x2, y2 = (float(value) for value in box * np.tile(np.array(size, np.float32), 2))
    return x1, y1, x2, y2


def sigmoid(logits: npt.NDArray[Any]) -> FloatArray:
    """Return 1 / (1 + exp(-x)) in float32, without an overflow."""
    small = np.exp(-np.abs(logits, dtype=np.float32))
    result: FloatArray = np.where(logits >= 0, 1, small) / (1 + small)
    return result.astype(np.float32)
