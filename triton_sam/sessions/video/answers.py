"""Writes the answer of the video model: rows of masks and scores, and one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..._common import strict_json
from ...families.base import Family, Size
from ...masks.resize import full_size_logits
from ...masks.segment import Segment, find_format
from ...wire import contract, video
from ..reply import Tensors
from .tracker import Row

NO_OBJECT = -1024.0
"""The logits and the score of an object without an output in a frame, as in the official predictor."""


def write_result(result: Mapping[str, Any]) -> Tensors:
    """Return the output ``result``, one JSON object."""
    return {video.RESULT: np.array([strict_json.dumps(result).encode()], np.object_)}


def write_rows(rows: Sequence[Row], output_format: str, family: Family, size: Size) -> Tensors:
    """Return the outputs of rows. Full-size masks are computed and encoded one by one.

    Args:
        rows: an object in a frame each.
        output_format: "logits", or a format of encoded masks.
        family: the family at the size of its encoder's image.
        size: width and height of the frames.
    """
    outputs = [row.output for row in rows]
    columns: Tensors = {
        video.FRAME_INDEXES: np.array([row.frame for row in rows], np.int64),
        video.OBJECT_IDS: np.array([row.object_id for row in rows], np.int64),
        video.OBJECT_SCORES: np.array([NO_OBJECT if each is None else each.score for each in outputs], np.float32),
        contract.IOU_PREDICTIONS: np.array([0.0 if each is None else each.iou for each in outputs], np.float32),
    }
    side = family.mask_size
    logits = np.full((len(rows), 1, side, side), NO_OBJECT, np.float32)
    for index, each in enumerate(outputs):
        if each is not None and each.logits is not None:
            logits[index] = each.logits
    if output_format == contract.LOGITS:
        return {**columns, contract.MASKS: logits}
    form = find_format(output_format, "session model")
    encoded = [
        form.to_bytes(Segment(full_size_logits(each[0], size, family) > 0, float(iou), None))
        for each, iou in zip(logits, columns[contract.IOU_PREDICTIONS], strict=True)
    ]
    masks = np.empty(len(encoded), np.object_)
    masks[:] = encoded
    return {**columns, contract.ENCODED_MASKS: masks}
