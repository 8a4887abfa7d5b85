"""Reads a request of the session model, which consists either of tensors or of base64 and JSON."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common.values import is_base64, json_kind
from ...errors import ImageError, InputError, PromptError
from ...inputs.prompts import Prompts, check_prompts
from ...masks.cleanup import Cleanup
from ...wire import contract
from ...wire.contract import OutputFormat

Tensors = Mapping[str, npt.NDArray[Any]]

_JSON_KEYS = {
    "points": "a list of [x, y]",
    "labels": "a list of 1 and 0",
    "boxes": "a list of [x1, y1, x2, y2]",
    "multimask": "true or false",
    "image_id": "text",
    "rle": "true or false",
    "cleanup": 'an object such as {"keep_clicked": true}',
}

_EXAMPLES = {contract.PROMPT_JSON: '{"points": [[x, y]]}', contract.CLEANUP: '{"keep_clicked": true}'}


@dataclass(frozen=True, eq=False)
class SessionRequest:
    """One request. It has either ``image`` or ``image_id``. Without a prompt, the model only encodes the image.

    Args:
        image: an encoded image file.
        image_id: id of an image that was sent earlier.
        point_coords: points in pixels of the original image; see prompts.check_prompts, also for the next three.
        point_labels: labels of the points.
        box: boxes in pixels of the original image.
        mask_input: low-resolution logits.
        multimask_output: whether to return three candidate masks for each object.
        output_format: format of the masks in the answer.
        cleanup: changes of full-size masks; None for none.
        as_json: whether to answer in ``result_json``.
        with_rle: whether ``result_json`` has COCO RLE in addition to the PNG.
    """

    image: bytes | None = None
    image_id: str | None = None
    point_coords: Any = None
    point_labels: Any = None
    box: Any = None
    mask_input: Any = None
    multimask_output: bool = False
    output_format: OutputFormat = contract.LOGITS
    cleanup: Cleanup | None = None
    as_json: bool = False
    with_rle: bool = False

    @property
    def has_prompt(self) -> bool:
        """Whether the request asks for masks."""
        parts = (self.point_coords, self.point_labels, self.box, self.mask_input)
        return any(part is not None for part in parts)

    def prompts(self, image_size: tuple[int, int], mask_size: int) -> Prompts:
        """Check the prompt against the image.

        Raises:
            PromptError: see prompts.check_prompts; also for more points or objects than a request may have.
        """
        for part in (self.point_coords, self.mask_input):
            _check_objects(_objects(part))
        count = sum(_leaves(part) for part in (self.point_coords, self.box)) // 2
        if count > contract.MAX_POINTS:
            raise PromptError(
                f"{count} points: a request may have at most {contract.MAX_POINTS}, and a box counts as two"
            )
        prompts = check_prompts(
            self.point_coords,
            self.point_labels,
            self.box,
            self.mask_input,
            image_size=image_size,
            mask_size=mask_size,
        )
        _check_objects(len(prompts))
        return prompts


def read_request(tensors: Tensors) -> SessionRequest:
    """Read a request.

    Raises:
        ImageError: ``image_b64`` is not valid base64, or ``image`` is base64.
        PromptError: ``prompt_json`` is not valid JSON, or has wrong keys or types.
        InputError: inputs contradict each other, or there is no image.
    """
    if contract.IMAGE_B64 in tensors or contract.PROMPT_JSON in tensors:
        request = _read_json(tensors)
    else:
        request = _read_tensors(tensors)
    if (request.image is None) == (request.image_id is None):
        raise InputError("give either an image or the image_id of one that was sent before")
    return request


def wants_json(tensors: Container[str]) -> bool:
    """Return whether the answer, even an error, must be in ``result_json``."""
    return contract.IMAGE_B64 in tensors or contract.PROMPT_JSON in tensors


def _read_tensors(tensors: Tensors) -> SessionRequest:
    image_id = read_bytes(tensors, contract.IMAGE_ID)
    multimask = tensors.get(contract.MULTIMASK_OUTPUT)
    form = _format(read_bytes(tensors, contract.OUTPUT_FORMAT))
    return SessionRequest(
        image=_image(read_bytes(tensors, contract.IMAGE)),
        image_id=None if image_id is None else _text(image_id, contract.IMAGE_ID),
        point_coords=tensors.get(contract.POINT_COORDS),
        point_labels=tensors.get(contract.POINT_LABELS),
        box=tensors.get(contract.BOXES),
        mask_input=tensors.get(contract.MASK_INPUT),
        multimask_output=multimask is not None and bool(multimask.ravel()[0]),
        output_format=form,
        cleanup=_cleanup(read_bytes(tensors, contract.CLEANUP), form),
    )


def _image(content: bytes | None) -> bytes | None:
    if content is not None and is_base64(content):
        raise ImageError(
            f"{contract.IMAGE} has base64: send the bytes of the file, or send base64 in {contract.IMAGE_B64}"
        )
    return content


def _read_json(tensors: Tensors) -> SessionRequest:
    others = tensors.keys() - {contract.IMAGE_B64, contract.PROMPT_JSON}
    if others:
        raise InputError(f"image_b64 and prompt_json cannot be combined with {min(others)}")
    content = read_bytes(tensors, contract.PROMPT_JSON)
    prompt = {} if content is None else _parse(content, contract.PROMPT_JSON)
    for key in prompt:
        if key not in _JSON_KEYS:
            raise PromptError(f"prompt_json has no {str(key)[:40]!r}: its keys are {', '.join(_JSON_KEYS)}")
    encoded = read_bytes(tensors, contract.IMAGE_B64)
    return SessionRequest(
        image=None if encoded is None else _decode(encoded),
        image_id=_typed(prompt, "image_id", str),
        # A form without clicks sends empty lists, which mean no prompt.
        point_coords=_typed(prompt, "points", list) or None,
        point_labels=_typed(prompt, "labels", list) or None,
        box=_typed(prompt, "boxes", list) or None,
        multimask_output=bool(_typed(prompt, "multimask", bool)),
        cleanup=None if prompt.get("cleanup") is None else Cleanup.from_json(_typed(prompt, "cleanup", dict)),
        as_json=True,
        with_rle=bool(_typed(prompt, "rle", bool)),
    )


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # ValueError includes text that is not UTF-8
        raise PromptError(f"{name} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise PromptError(f"{name} must be an object such as {_EXAMPLES[name]}, not {json_kind(value)}")
    return value


def _cleanup(content: bytes | None, form: OutputFormat) -> Cleanup | None:
    if content is None:
        return None
    if form == contract.LOGITS:
        others = " or ".join(contract.output_formats()[1:])
        raise InputError(f"cleanup changes full-size masks, not logits: ask for output_format {others}")
    return Cleanup.from_json(_parse(content, contract.CLEANUP))


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
        raise ImageError(f"image_b64 is no base64: {error}") from error


def _format(value: bytes | None) -> OutputFormat:
    name = contract.LOGITS if value is None else _text(value, contract.OUTPUT_FORMAT)
    known = contract.output_formats()
    if name not in known:
        raise InputError(f"output_format must be one of {', '.join(known)}, not {name[:40]!r}")
    return name


def read_bytes(tensors: Tensors, name: str) -> bytes | None:
    """Return the content of a BYTES input with one element; None if the request does not have it."""
    array = tensors.get(name)
    if array is None:
        return None
    if not array.size:
        raise InputError(f"{name} is empty")
    value = array.ravel()[0]
    return value if isinstance(value, bytes) else bytes(value)


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is no UTF-8 text") from error


def _objects(part: Any) -> int:
    """Return the number of objects by a tensor's shape, which can claim any number although the tensor has no values.

    Return 0 for other inputs, whose length is limited by their size on the wire.
    """
    return len(part) if isinstance(part, np.ndarray) and part.ndim > 2 else 0


def _check_objects(count: int) -> None:
    if count > contract.MAX_OBJECTS:
        raise PromptError(f"{count} objects: a request may have at most {contract.MAX_OBJECTS}")


def _leaves(value: Any) -> int:
    """Count the numbers in nested lists or an array, without trusting their shape."""
    if isinstance(value, np.ndarray):
        return value.size
    pending, count = [value], 0
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        else:
            count += item is not None
    return count
