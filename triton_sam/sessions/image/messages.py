"""Requests and answers of the session model.

A request consists of tensors, or of base64 and JSON. An answer has logits, encoded masks, or one JSON text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common.checks import is_base64, json_kind
from ..._common.text import one_line
from ...errors import ImageError, InputError, PromptError
from ...inputs.prompts import Prompts, check_prompts
from ...masks.cleanup import Cleanup
from ...masks.segment import Segment, find_format
from ...wire import contract
from ...wire.pair import ModelPair, Prediction
from ..images import HeldImage
from ..messages import OUTPUT_FORMATS, Tensors, check_points, json_tensor, read_bytes, read_format, read_object

Inputs = Mapping[str, npt.NDArray[Any]]

_JSON_INPUTS = {contract.IMAGE_B64, contract.PROMPT_JSON}
_JSON_KEYS = {
    "points": "a list of [x, y]",
    "labels": "a list of 1 and 0",
    "boxes": "a list of [x1, y1, x2, y2]",
    "multimask": "true or false",
    "image_id": "text",
    "rle": "true or false",
    "cleanup": 'an object such as {"keep_clicked": true}',
}


@dataclass(frozen=True, eq=False)
class SessionRequest:
    """One request. It has either ``image`` or ``image_id``. Without a prompt, the model only encodes the image.

    Args:
        point_coords: points in pixels of the original image; see prompts.check_prompts, also for the next three.
        with_rle: whether ``result_json`` has COCO RLE in addition to the PNG.
    """

    image: bytes | None = None
    image_id: str | None = None
    point_coords: Any = None
    point_labels: Any = None
    box: Any = None
    mask_input: Any = None
    multimask_output: bool = False
    output_format: str = contract.LOGITS
    cleanup: Cleanup | None = None
    as_json: bool = False
    with_rle: bool = False

    @property
    def has_prompt(self) -> bool:
        parts = (self.point_coords, self.point_labels, self.box, self.mask_input)
        return any(part is not None for part in parts)

    def prompts(self, image_size: tuple[int, int], mask_size: int) -> Prompts:
        # An empty tensor can claim any number of objects; the size of a list is limited by the request.
        parts = (self.point_coords, self.mask_input)
        claimed = max((len(part) for part in parts if isinstance(part, np.ndarray) and part.ndim > 2), default=0)
        if claimed > contract.MAX_OBJECTS:
            raise _too_many(claimed)
        check_points(self.point_coords, self.box)
        prompts = check_prompts(
            self.point_coords,
            self.point_labels,
            self.box,
            self.mask_input,
            image_size=image_size,
            mask_size=mask_size,
        )
        if len(prompts) > contract.MAX_OBJECTS:
            raise _too_many(len(prompts))
        return prompts


def read_request(tensors: Inputs) -> SessionRequest:
    if not _JSON_INPUTS.isdisjoint(tensors):
        request = _read_json(tensors)
    else:
        multimask = tensors.get(contract.MULTIMASK_OUTPUT)
        image, image_id = read_bytes(tensors, contract.IMAGE), read_bytes(tensors, contract.IMAGE_ID)
        if image is not None and is_base64(image):
            raise ImageError(
                f"{contract.IMAGE} has base64: send the bytes of the file, or send base64 in {contract.IMAGE_B64}"
            )
        request = SessionRequest(
            image=image,
            image_id=None if image_id is None else image_id.decode(errors="replace"),
            point_coords=tensors.get(contract.POINT_COORDS),
            point_labels=tensors.get(contract.POINT_LABELS),
            box=tensors.get(contract.BOXES),
            mask_input=tensors.get(contract.MASK_INPUT),
            multimask_output=multimask is not None and bool(multimask.ravel()[0]),
            output_format=read_format(tensors),
            cleanup=_read_cleanup(tensors) if contract.CLEANUP in tensors else None,
        )
    if (request.image is None) == (request.image_id is None):
        raise InputError("give either an image or the image_id of one that was sent before")
    return request


def wants_json(tensors: Iterable[str]) -> bool:
    """Return whether the answer, even an error, must be in ``result_json``."""
    return not _JSON_INPUTS.isdisjoint(tensors)


def _read_json(tensors: Inputs) -> SessionRequest:
    others = tensors.keys() - _JSON_INPUTS
    if others:
        raise InputError(f"image_b64 and prompt_json cannot be combined with {min(others)}")
    prompt: dict[str, Any] = {}
    if contract.PROMPT_JSON in tensors:
        prompt = read_object(tensors, contract.PROMPT_JSON, '{"points": [[x, y]]}', PromptError)
    for key in prompt:
        if key not in _JSON_KEYS:
            raise PromptError(f"prompt_json has no {str(key)[:40]!r}: its keys are {', '.join(_JSON_KEYS)}")
    encoded = read_bytes(tensors, contract.IMAGE_B64)
    return SessionRequest(
        image=None if encoded is None else _decode(encoded),
        image_id=_typed(prompt, "image_id", str),
        # A form without clicks sends empty lists: no prompt.
        point_coords=_typed(prompt, "points", list) or None,
        point_labels=_typed(prompt, "labels", list) or None,
        box=_typed(prompt, "boxes", list) or None,
        multimask_output=bool(_typed(prompt, "multimask", bool)),
        cleanup=None if prompt.get("cleanup") is None else Cleanup.from_json(_typed(prompt, "cleanup", dict)),
        as_json=True,
        with_rle=bool(_typed(prompt, "rle", bool)),
    )


def _read_cleanup(tensors: Inputs) -> Cleanup:
    if read_format(tensors) == contract.LOGITS:
        others = " or ".join(OUTPUT_FORMATS[1:])
        raise InputError(f"cleanup changes full-size masks, not logits: request output_format {others}")
    return Cleanup.from_json(read_object(tensors, contract.CLEANUP, '{"keep_clicked": true}', PromptError))


def _typed(prompt: Mapping[str, Any], key: str, kind: type) -> Any:
    value = prompt.get(key)
    if value is not None and not isinstance(value, kind):
        raise PromptError(f"prompt_json: {key} must be {_JSON_KEYS[key]}, not {json_kind(value)}")
    return value


def _decode(encoded: bytes) -> bytes:
    try:
        # Shells add line breaks, and browsers add the prefix of a data URL.
        return base64.b64decode(b"".join(encoded.rpartition(b"base64,")[2].split()), validate=True)
    except binascii.Error as error:
        raise ImageError(f"image_b64 is not valid base64: {error}") from error


def _too_many(objects: int) -> PromptError:
    return PromptError(f"{objects} objects: a request may have at most {contract.MAX_OBJECTS}")


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
    """Return ``result_json``: all masks, the best mask as ``mask``, image id and size, milliseconds.

    Masks are computed and encoded one by one, because all full-size masks of a request could exhaust the memory.
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
    """Return ``result_json`` with a result and the milliseconds of each step; ``timings`` are in seconds."""
    taken = {f"{name}_ms": round(seconds * 1000, 2) for name, seconds in timings.items()}
    return {contract.RESULT_JSON: json_tensor({**result, "timings": taken})}


def write_json_error(error: Exception) -> Tensors:
    """Return ``result_json`` with an error: ``{"error": {"code", "message"}}``."""
    return {contract.RESULT_JSON: json_tensor({"error": {"code": contract.code_of(error), "message": one_line(error)}})}


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
