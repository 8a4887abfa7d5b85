"""Reads a request of the video model: an operation, its arguments as JSON, and tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._common.values import json_kind
from ...errors import InputError, PromptError, VideoError
from ...families.base import LABEL_BOX_BOTTOM_RIGHT, LABEL_BOX_TOP_LEFT, LABEL_NO_POINT, Size
from ...inputs.prompts import check_prompts
from ...wire import video
from ...wire.contract import LOGITS, OUTPUT_FORMAT
from .memory import Points

Tensors = Mapping[str, npt.NDArray[Any]]

MAX_FRAME = (1 << 31) - 1
MAX_FRAMES = 256
"""Maximum number of frames in one request."""

WITH_STEP = (video.ADD_PROMPT, video.PROPAGATE, video.REMOVE_OBJECT, video.CLEAR_PROMPTS, video.RESET_SESSION)
"""The operations that change what a session computes. Each has the number of its step, so that none happens twice."""
KEYS: Mapping[str, tuple[str, ...]] = {
    video.START_SESSION: ("num_frames", "frame_size"),
    video.ADD_FRAMES: ("frame_indexes",),
    video.ADD_PROMPT: (
        "frame_index",
        "object_id",
        "points",
        "labels",
        "box",
        "clear_old_points",
        "frame_indexes",
        "step",
    ),
    video.PROPAGATE: ("frame_index", "frame_count", "reverse", "first", "frame_indexes", "step"),
    video.REMOVE_OBJECT: ("object_id", "step"),
    video.CLEAR_PROMPTS: ("frame_index", "object_id", "step"),
    video.RESET_SESSION: ("step",),
    video.CLOSE_SESSION: (),
    video.CANCEL_PROPAGATION: (),
    video.GET_SNAPSHOT: (),
}
"""The keys of the arguments of each operation."""
TENSORS: Mapping[str, tuple[str, ...]] = {
    video.START_SESSION: (video.SNAPSHOT,),
    video.ADD_FRAMES: (video.FRAMES,),
    video.ADD_PROMPT: (video.FRAMES, video.MASK),
    video.PROPAGATE: (video.FRAMES,),
}
"""The inputs that only some operations take."""


@dataclass(frozen=True, eq=False)
class VideoRequest:
    """One request.

    Args:
        operation: one of wire.video.OPERATIONS.
        session_id: id of the session; empty for start_session.
        arguments: the checked JSON object.
        frames: image files by index of the frame.
        mask: bool (H,W), a mask as prompt.
        snapshot: the state of a lost session.
        output_format: format of the masks in the answer.
        wants_snapshot: whether the answer shall have a snapshot.
    """

    operation: str
    session_id: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    frames: Mapping[int, bytes] = field(default_factory=dict)
    mask: npt.NDArray[np.bool_] | None = None
    snapshot: bytes | None = None
    output_format: str = LOGITS
    wants_snapshot: bool = False

    def whole(self, key: str, default: int | None = None, least: int = 0, most: int = MAX_FRAME) -> int:
        """Return an argument that is a whole number.

        Raises:
            InputError: it is missing, or no whole number in the range.
        """
        value = self.arguments.get(key)
        if value is None:
            value = default
        if type(value) is not int or not least <= value <= most:  # True is an int, but no number here
            raise InputError(f"arguments: {key} must be a whole number from {least} to {most}, not {_short(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return an argument that is true or false."""
        value = self.arguments.get(key)
        if value is not None and not isinstance(value, bool):
            raise InputError(f"arguments: {key} must be true or false, not {_short(value)}")
        return default if value is None else value

    @property
    def object_id(self) -> int:
        """The object."""
        return self.whole("object_id", least=-(1 << 63), most=(1 << 63) - 1)

    @property
    def num_frames(self) -> int | None:
        """The number of frames of the video; None for a stream."""
        if self.arguments.get("num_frames") is None:
            return None
        if self.arguments["num_frames"] == 0:
            raise VideoError("the video has no frames")
        return self.whole("num_frames", least=1)

    @property
    def frame_size(self) -> Size | None:
        """Width and height of the frames, if the client tells them."""
        value = self.arguments.get("frame_size")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or not all(type(side) is int and side > 0 for side in value):
            raise InputError(f"arguments: frame_size must be [width, height] in pixels, not {_short(value)}")
        return value[0], value[1]

    def points(self, size: Size, image_size: int) -> Points:
        """Return points and box in pixels of the encoder's image. The corners of a box come first.

        Args:
            size: width and height of the frames.
            image_size: side of the encoder's image.

        Raises:
            PromptError: see prompts.check_prompts; also for several objects, or a box that is added to older points.
        """
        values = [self.arguments.get(key) for key in ("points", "labels", "box")]
        for key, value in zip(("points", "labels", "box"), values, strict=True):
            if value is not None and not isinstance(value, list):
                raise PromptError(f"arguments: {key} must be a list, not {_short(value)}")
        points, labels, box = (value or None for value in values)
        if points is None and box is None:
            raise PromptError("give points, a box or a mask")
        if box is not None and not self.flag("clear_old_points", True):
            raise PromptError("a box comes before all points: give it with clear_old_points = true")
        checked = check_prompts(points, labels, box, None, image_size=size, mask_size=image_size // 4)
        if len(checked) != 1:
            raise PromptError(f"a prompt is for one object, not for {len(checked)}")
        if (checked.labels == LABEL_NO_POINT).any():
            raise PromptError("label -2 is unknown: use 1 (foreground) or 0 (background)")
        coords, kinds = checked.coords[0], checked.labels[0].astype(np.float32)
        if checked.boxes is not None:
            coords = np.concatenate([checked.boxes.reshape(2, 2), coords])
            kinds = np.concatenate([np.array([LABEL_BOX_TOP_LEFT, LABEL_BOX_BOTTOM_RIGHT], np.float32), kinds])
        # The order of the operations is that of the official predictor, so that the last bit is equal.
        scaled = coords / np.array(size, np.float32) * np.float32(image_size)
        return Points(scaled.astype(np.float32), kinds.astype(np.float32))

    def mask_of(self, size: Size) -> npt.NDArray[np.bool_]:
        """Return the mask.

        Raises:
            PromptError: its size is not that of the frames, or it is given together with points or a box.
        """
        assert self.mask is not None  # noqa: S101 - for the type checker
        if any(self.arguments.get(key) for key in ("points", "labels", "box")):
            raise PromptError("a mask cannot be combined with points or a box")
        if self.mask.shape != (size[1], size[0]):
            raise PromptError(f"mask must have the size of the frames, ({size[1]}, {size[0]}), not {self.mask.shape}")
        return self.mask


def read_operation(tensors: Tensors) -> tuple[str, str]:
    """Return operation and session id of a request.

    Raises:
        InputError: the operation is unknown, or the session id is missing.
    """
    operation = _text(tensors, video.OPERATION)
    if operation not in video.OPERATIONS:
        raise InputError(f"operation must be one of {', '.join(video.OPERATIONS)}, not {_short(operation)}")
    session_id = _text(tensors, video.SESSION_ID)
    if not session_id and operation != video.START_SESSION:
        raise InputError(f"{operation} needs the session_id from the answer to start_session")
    return operation, session_id


def read_request(tensors: Tensors, wants_snapshot: bool = False) -> VideoRequest:
    """Read a request.

    Raises:
        InputError: an input is missing, unknown to the operation, or has a wrong type.
        PromptError: the mask is none.
    """
    operation, session_id = read_operation(tensors)
    for name in (video.FRAMES, video.MASK, video.SNAPSHOT):
        if name in tensors and name not in TENSORS.get(operation, ()):
            raise InputError(f"{operation} takes no {name}")
    output_format = _text(tensors, OUTPUT_FORMAT) or LOGITS
    if output_format not in video.output_formats():
        known = ", ".join(video.output_formats())
        raise InputError(f"output_format must be one of {known}, not {_short(output_format)}")
    arguments = _arguments(operation, tensors)
    return VideoRequest(
        operation,
        session_id,
        arguments,
        _frames(arguments, tensors, operation == video.ADD_FRAMES),
        _mask(tensors),
        _content(tensors, video.SNAPSHOT),
        output_format,
        wants_snapshot,
    )


def _arguments(operation: str, tensors: Tensors) -> dict[str, Any]:
    try:
        arguments = json.loads(_content(tensors, video.ARGUMENTS) or b"{}")
    except (ValueError, RecursionError) as error:
        raise InputError(f"arguments is no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InputError(f"arguments must be a JSON object, not {json_kind(arguments)}")
    for key in arguments:
        if key not in KEYS[operation]:
            known = ", ".join(KEYS[operation]) or "no arguments"
            raise InputError(f"{operation} has no argument {_short(key)}: it has {known}")
    return arguments


def _frames(arguments: Mapping[str, Any], tensors: Tensors, is_needed: bool) -> dict[int, bytes]:
    indexes, frames = arguments.get("frame_indexes"), tensors.get(video.FRAMES)
    if frames is None and indexes is None and not is_needed:
        return {}
    if not isinstance(indexes, list) or not all(type(index) is int and 0 <= index <= MAX_FRAME for index in indexes):
        raise InputError(f"arguments: frame_indexes must be a list of whole numbers from 0, not {_short(indexes)}")
    contents = [] if frames is None else [bytes(frame) for frame in frames.ravel()]
    if not contents or len(contents) != len(indexes) or len(set(indexes)) != len(indexes):
        raise InputError(f"frame_indexes must name each of the {len(contents)} frames once")
    if len(contents) > MAX_FRAMES:
        raise InputError(f"{len(contents)} frames: a request may have at most {MAX_FRAMES}")
    return dict(zip(indexes, contents, strict=True))


def _mask(tensors: Tensors) -> npt.NDArray[np.bool_] | None:
    mask = tensors.get(video.MASK)
    if mask is None:
        return None
    if mask.dtype != np.bool_ or mask.ndim != 2 or mask.size == 0:
        raise PromptError(f"mask must be a bool array (height, width), not {mask.dtype} {mask.shape}")
    return mask


def _content(tensors: Tensors, name: str) -> bytes | None:
    array = tensors.get(name)
    if array is None:
        return None
    if array.size != 1:
        raise InputError(f"{name} must have one element, not {array.size}")
    value = array.ravel()[0]
    return value if isinstance(value, bytes) else str(value).encode()


def _text(tensors: Tensors, name: str) -> str:
    try:
        return (_content(tensors, name) or b"").decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is no UTF-8 text") from error


def _short(value: Any) -> str:
    return repr(value)[:40]
