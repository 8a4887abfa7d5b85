"""Writes the answer of the session model: logits, encoded masks, or one JSON text."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..._common import strict_json
from ..._common.text import one_line
from ...masks.segment import Segment, find_format
from ...wire import contract
from ...wire.pair import ModelPair, Prediction
from ..cache import HeldImage
from ..reply import Tensors
from .requests import SessionRequest


def write_image(image: HeldImage) -> Tensors:
    """Return the outputs of every answer: ``image_id`` BYTES [1] and ``image_size`` INT32 [2], width and height."""
    return {
        contract.IMAGE_ID: np.array([image.image_id.encode()], np.object_),
        contract.IMAGE_SIZE: np.array(image.image_size, np.int32),
    }


def write_masks(pair: ModelPair, prediction: Prediction, request: SessionRequest) -> Tensors:
    """Return masks and scores in the requested format.

    Returns:
        ``iou_predictions`` FP32 (P,M), and ``masks`` FP32 (P,M,h,w), the unchanged logits of the decoder, or
        ``encoded_masks`` BYTES (P,M), full-size masks as the contents of files.
    """
    scores = {contract.IOU_PREDICTIONS: prediction.scores}
    if request.output_format == contract.LOGITS:
        return {contract.MASKS: prediction.logits, **scores}
    form = find_format(request.output_format, "session model")
    encoded = [form.to_bytes(segment) for segment in pair.segments(prediction, request.cleanup)]
    return {contract.ENCODED_MASKS: np.array(encoded, np.object_).reshape(prediction.scores.shape), **scores}


def write_json(
    image: HeldImage, segments: Iterable[Segment], request: SessionRequest, timings: Mapping[str, float]
) -> Tensors:
    """Return ``result_json``: all masks, the best of them as ``mask``, image id and size, milliseconds.

    Masks are computed and encoded one by one, because all full-size masks of a request could fill the memory.
    """
    masks = [_mask(segment, request) for segment in segments]
    result = {
        "mask": max(masks, key=lambda mask: float(mask["score"]), default=None),
        "masks": masks,
        "image_id": image.image_id,
        "image_size": list(image.image_size),
    }
    return write_result(result, timings)


def write_result(result: Mapping[str, Any], timings: Mapping[str, float]) -> Tensors:
    """Return ``result_json`` with a result and the duration of each step, given in seconds, in milliseconds."""
    taken = {f"{name}_ms": round(seconds * 1000, 2) for name, seconds in timings.items()}
    return _result({**result, "timings": taken})


def write_json_error(error: Exception) -> Tensors:
    """Return ``result_json`` with an error: ``{"error": {"code", "message"}}``."""
    return _result({"error": {"code": contract.code_of(error), "message": one_line(error)}})


def _mask(segment: Segment, request: SessionRequest) -> dict[str, Any]:
    height, width = segment.mask.shape
    mask = {
        "data": base64.b64encode(segment.to_png()).decode(),
        "width": width,
        "height": height,
        "score": segment.score,
        "object": segment.object_index,
        "candidate": segment.candidate,
    }
    return {**mask, "rle": segment.to_rle()} if request.with_rle else mask


def _result(result: Mapping[str, Any]) -> Tensors:
    return {contract.RESULT_JSON: np.array([strict_json.dumps(result).encode()], np.object_)}
