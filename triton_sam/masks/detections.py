"""Segments as the detections of the package supervision, for its annotators, trackers and data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._common.extras import missing

if TYPE_CHECKING:
    from .segment import Segment

UNNAMED = "object"
"""The class of objects without a label."""


def to_supervision(segments: Sequence[Segment]) -> Any:
    """Return segments as supervision.Detections. Empty masks are left out, because a detection has a box.

    Args:
        segments: masks of one image.

    Returns:
        Detections with ``xyxy`` float32 (N,4), ``mask`` bool (N,H,W), ``confidence`` float32 (N,), which is the
        predicted IoU, ``class_id`` int64 (N,), which numbers the labels in their order from 0, and the names
        ``data["class_name"]`` (the labels, "object" without one), ``data["object_index"]`` and ``data["candidate"]``.

    Raises:
        MissingDependencyError: supervision is not installed.
    """
    try:
        import supervision
    except ImportError as error:
        raise missing("to_supervision() needs", "supervision", error) from error
    boxes = [segment.box for segment in segments]
    kept = [(segment, box) for segment, box in zip(segments, boxes, strict=True) if box is not None]
    if not kept:
        return supervision.Detections.empty()
    names = [segment.label or UNNAMED for segment, _ in kept]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return supervision.Detections(
        xyxy=np.array([box for _, box in kept], np.float32),
        mask=np.stack([segment.mask for segment, _ in kept]),
        confidence=np.array([segment.score for segment, _ in kept], np.float32),
        class_id=np.array([numbers[name] for name in names], np.int64),
        data={
            "class_name": np.array(names),
            "object_index": np.array([segment.object_index for segment, _ in kept]),
            "candidate": np.array([segment.candidate for segment, _ in kept]),
        },
    )
