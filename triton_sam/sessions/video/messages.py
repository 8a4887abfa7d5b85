"""Requests and answers of the video model.

A request is an operation, its arguments as JSON, and tensors. An answer is a JSON object, and rows of masks and scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common.checks import json_kind
from ...errors import InputError, PromptError, VideoError
from ...families.base import LABEL_BOX_BOTTOM_RIGHT, LABEL_BOX_TOP_LEFT, LABEL_NO_POINT, Family, Size
from ...inputs.prompts import check_prompts
from ...masks.resize import full_size_masks
from ...masks.segment import Segment, find_format
from ...wire import contract, video
from ..messages import MAX_JSON, Tensors, check_points, read_bytes, read_format
from .memory import Points
from .tracker import Row

MAX_FRAME = (1 << 31) - 1
MAX_FRAMES = 256
NO_OBJECT = -1024.0
"""The logits and the score of an object without an output in a frame, as in the official predictor."""

WITH_STEP = (
    video.ADD_PROMPT,
    video.PROPAGATE,
    video.UPDATE_MEMORIES,
    video.REMOVE_OBJECT,
    video.CLEAR_PROMPTS,
    video.RESET_SESSION,
)
"""The operations that change the state of a session. Each has a step number, so that it never runs twice."""
_LISTS = ("points", "labels", "box")
_IDS = ("absent", "confirmed")
"""Arguments that are lists of object ids."""
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    video.START_SESSION: ("num_frames", "frame_size"),
    video.ADD_FRAMES: ("frame_indexes", video.WORDS),
    video.ADD_PROMPT: ("frame_index", "object_id", *_LISTS, "clear_old_points", "frame_indexes", "step"),
    video.PROPAGATE: ("frame_index", "reverse", "first", "remember", "frame_indexes", "step"),
    video.UPDATE_MEMORIES: ("frame_index", *_IDS, "frame_indexes", "step"),
    video.REMOVE_OBJECT: ("object_id", "step"),
    video.CLEAR_PROMPTS: ("frame_index", "object_id", "step"),
    video.RESET_SESSION: ("step",),
    video.CLOSE_SESSION: (),
    video.GET_SNAPSHOT: (),
    video.FIND: ("frame_index", "query", "frame_indexes"),
}
"""The keys of the arguments of each operation."""
_NUMBERS = {
    "frame_index": (0, MAX_FRAME),
    "object_id": (-(1 << 63), (1 << 63) - 1),
    "step": (1, MAX_FRAME),
    "num_frames": (1, MAX_FRAME),
}
"""Arguments that are whole numbers, with their minimum and maximum."""
_LIMITS = {
    **_NUMBERS,
    **dict.fromkeys(_IDS, _NUMBERS["object_id"]),
    "frame_indexes": _NUMBERS["frame_index"],
    "frame_size": (1, MAX_FRAME),
}
"""The minimum and maximum of a whole number, or of each number of a list."""
_FLAGS = {"reverse": False, "first": False, "remember": True, "clear_old_points": True, video.WORDS: False}
"""Arguments that are true or false, with their defaults."""
_REQUIRED = ("frame_index", "object_id", "step", "query")
_KINDS: Mapping[str, tuple[type, str, type[InputError]]] = {
    **{key: (int, f"a whole number from {least} to {most}", InputError) for key, (least, most) in _NUMBERS.items()},
    **dict.fromkeys(_FLAGS, (bool, "true or false", InputError)),
    **dict.fromkeys(_LISTS, (list, "a list", PromptError)),
    **dict.fromkeys(_IDS, (list, "a list of object ids", InputError)),
    "frame_indexes": (list, "a list of whole numbers from 0", InputError),
    "frame_size": (list, "[width, height] in pixels", InputError),
    "query": (dict, 'an object such as {"text": "dog"}', PromptError),
}
"""The type of each argument, its description, and the error for another value."""
_TENSORS: Mapping[str, tuple[str, ...]] = {
    video.START_SESSION: (video.SNAPSHOT,),
    video.ADD_FRAMES: (video.FRAMES,),
    video.ADD_PROMPT: (video.FRAMES, video.MASK),
    video.PROPAGATE: (video.FRAMES,),
    video.UPDATE_MEMORIES: (video.FRAMES,),
    video.FIND: (video.FRAMES,),
}
"""The inputs that only some operations take."""


@dataclass(frozen=True, eq=False)
class VideoRequest:
    """One request.

    Args:
        arguments: the checked JSON object, with the defaults of the flags.
    """

    operation: str
    session_id: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    frames: Mapping[int, bytes] = field(default_factory=dict)
    mask: npt.NDArray[np.bool_] | None = None
    snapshot: bytes | None = None
    output_format: str = contract.LOGITS
    wants_snapshot: bool = False

    def points(self, size: Size, image_size: int) -> Points:
        """Return points and box in pixels of the encoder's image. The corners of a box come first."""
        points, labels, box = (self.arguments.get(key) or None for key in _LISTS)
        if points is None and box is None:
            raise PromptError("give points, a box or a mask")
        if box is not None and not self.arguments["clear_old_points"]:
            raise PromptError("a box comes before all points: give it with clear_old_points = true")
        check_points(points, box)
        checked = check_prompts(points, labels, box, None, image_size=size, mask_size=image_size // 4)
        if len(checked) != 1:
            raise PromptError(f"a prompt is for one object, not for {len(checked)}")
        if (checked.labels == LABEL_NO_POINT).any():
            raise PromptError("label -2 is unknown: use 1 (foreground) or 0 (background)")
        coords, kinds = checked.coords[0], checked.labels[0].astype(np.float32)
        if checked.boxes is not None:
            coords = np.concatenate([checked.boxes.reshape(2, 2), coords])
            kinds = np.concatenate([np.array([LABEL_BOX_TOP_LEFT, LABEL_BOX_BOTTOM_RIGHT], np.float32), kinds])
        # The operations have the order of the official predictor, so that results are equal to the last bit.
        scaled = coords / np.array(size, np.float32) * np.float32(image_size)
        return Points(scaled.astype(np.float32), kinds.astype(np.float32))

    def mask_of(self, size: Size) -> npt.NDArray[np.bool_]:
        assert self.mask is not None  # noqa: S101 - for the type checker
        if any(self.arguments.get(key) for key in _LISTS):
            raise PromptError("a mask cannot be combined with points or a box")
        if self.mask.shape != (size[1], size[0]):
            raise PromptError(f"mask must have the size of the frames, ({size[1]}, {size[0]}), not {self.mask.shape}")
        return self.mask


def read_request(tensors: Mapping[str, npt.NDArray[Any]], wants_snapshot: bool = False) -> VideoRequest:
    operation = (read_bytes(tensors, video.OPERATION) or b"").decode(errors="replace")
    if operation not in video.OPERATIONS:
        raise InputError(f"operation must be one of {', '.join(video.OPERATIONS)}, not {_short(operation)}")
    session_id = (read_bytes(tensors, video.SESSION_ID) or b"").decode(errors="replace")
    if not session_id and operation != video.START_SESSION:
        raise InputError(f"{operation} needs the session_id from the answer to start_session")
    for name in (video.FRAMES, video.MASK, video.SNAPSHOT):
        if name in tensors and name not in _TENSORS.get(operation, ()):
            raise InputError(f"{operation} takes no {name}")
    arguments = _arguments(
        operation, read_bytes(tensors, video.ARGUMENTS, MAX_JSON) or b"{}", video.SNAPSHOT in tensors
    )
    mask = tensors.get(video.MASK)
    if mask is not None and (mask.dtype != np.bool_ or mask.ndim != 2 or mask.size == 0):
        raise PromptError(f"mask must be a bool array (height, width), not {mask.dtype} {mask.shape}")
    contents = [bytes(frame) for frame in tensors[video.FRAMES].ravel()] if video.FRAMES in tensors else []
    indexes = arguments.get("frame_indexes", [])
    needs_frames = operation == video.ADD_FRAMES or video.FRAMES in tensors or "frame_indexes" in arguments
    if (needs_frames and not contents) or len(contents) != len(indexes) or len(set(indexes)) != len(indexes):
        raise InputError(f"frame_indexes must name each of the {len(contents)} frames once")
    if len(contents) > MAX_FRAMES:
        raise InputError(f"{len(contents)} frames: a request may have at most {MAX_FRAMES}")
    return VideoRequest(
        operation,
        session_id,
        arguments,
        dict(zip(indexes, contents, strict=True)),
        mask,
        read_bytes(tensors, video.SNAPSHOT),
        read_format(tensors),
        wants_snapshot,
    )


def _arguments(operation: str, content: bytes, has_snapshot: bool) -> dict[str, Any]:
    """Read and check the arguments of an operation; null counts as missing."""
    try:
        given = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"arguments: invalid JSON: {error}") from error
    if not isinstance(given, dict):
        raise InputError(f"arguments must be a JSON object, not {json_kind(given)}")
    keys = ARGUMENTS[operation]
    unknown = next((key for key in given if key not in keys), None)
    if unknown is not None:
        raise InputError(f"{operation} has no argument {_short(unknown)}: it has {', '.join(keys) or 'no arguments'}")
    if has_snapshot and given:
        raise InputError("a snapshot has all arguments of start_session: give it alone")
    if type(given.get("num_frames")) is int and given["num_frames"] == 0:
        raise VideoError("the video has no frames")
    arguments: dict[str, Any] = {key: _FLAGS[key] for key in keys if key in _FLAGS}
    arguments |= {key: value for key, value in given.items() if value is not None}
    for key in keys:
        value: Any = arguments.get(key)
        if value is None and key not in _REQUIRED:
            continue
        kind, description, refusal = _KINDS[key]
        is_valid = type(value) is kind  # True is an int, but not a valid number
        if is_valid and key in _LIMITS:
            least, most = _LIMITS[key]
            numbers = value if kind is list else [value]
            is_valid = all(type(each) is int and least <= each <= most for each in numbers)
        if not is_valid or (key == "frame_size" and len(value) != 2):
            raise refusal(f"arguments: {key} must be {description}, not {_short(value)}")
    return arguments


def write_rows(rows: Sequence[Row], output_format: str, family: Family, size: Size) -> Tensors:
    """Return the outputs of rows. Full-size masks are computed and encoded one by one."""
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
    encoded = []
    for each, iou in zip(logits, columns[contract.IOU_PREDICTIONS], strict=True):
        (mask,) = full_size_masks(each[0], size, family)
        encoded.append(form.to_bytes(Segment(mask, float(iou), None)))
    masks = np.empty(len(encoded), np.object_)
    masks[:] = encoded
    return {**columns, contract.ENCODED_MASKS: masks}


def _short(value: Any) -> str:
    return repr(value)[:40]
