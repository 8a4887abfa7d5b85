"""The parts of a video that both clients share: its frames and objects, checks, and the operations behind calls."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ConfigurationError, PromptError
from ...families.base import Size
from ...inputs.prompts import PromptArray, check_prompts
from ...inputs.video.base import FrameSource
from ...inputs.video.stream import DEFAULT_WINDOW
from ...masks.rle import BoolArray
from ...masks.segment import VideoSegment
from ...transport.base import Tensors
from ...transport.options import check_number
from ...wire import video as wire
from ...wire.contract import unknown_form
from .flows import SessionFlows
from .frames import SessionFrames
from .requests import WITH_LOGITS, WITH_MASKS, Operation, VideoModel

Segments = dict[int, VideoSegment]
"""The masks of all objects in one frame, by object id."""
OnProgress = Callable[[int, "int | None"], object]
"""Is called after each frame with the number of frames done and the number of all frames, None if it is unknown."""
Stop = concurrent.futures.Future[None]
"""Is done when a pass has to stop. Any thread may set it."""
LARGEST_ID = 2**63 - 1


@dataclass(frozen=True)
class VideoOptions:
    """How a video is opened; see SAM2VideoClient.open()."""

    quality: int | None = None
    every: int = 1
    ahead: int = 2
    snapshot_every: int = 16
    window: int = DEFAULT_WINDOW

    def __post_init__(self) -> None:
        for name in ("every", "ahead", "snapshot_every", "window"):
            check_number(name, getattr(self, name), whole=True)
        if self.quality is not None:
            check_number("quality", self.quality, whole=True)
        if self.ahead < 0:
            raise ConfigurationError(f"ahead must be at least 0 frames, not {self.ahead}")


@dataclass(frozen=True)
class Pass:
    """One pass through a video.

    Args:
        order: the frames of the session in the order in which they are tracked.
        total: their number, None if it is unknown.
        reverse: whether the pass goes towards the first frame.
        outputs: the outputs to ask for.
        stop: ends the pass.
        on_progress: see OnProgress.
    """

    order: Iterator[int]
    total: int | None
    reverse: bool
    outputs: tuple[str, ...]
    stop: Stop
    on_progress: OnProgress | None


class VideoCore:
    """Base class of `Video` and `AsyncVideo`. It sends no request.

    Args:
        model: builds requests and reads answers.
        source: the frames.
        options: how the video is opened.
    """

    def __init__(self, model: VideoModel, source: FrameSource, options: VideoOptions) -> None:
        self._model = model
        self._options = options
        self._frames = SessionFrames(source, options.every, recent=options.ahead + 2)
        self._flows = SessionFlows(model, self._frames, options.snapshot_every)
        self._object_ids: list[int] = []
        self._first_prompted: int | None = None
        self._stops: weakref.WeakSet[Stop] = weakref.WeakSet()
        self._stops_lock = threading.Lock()

    @property
    def num_frames(self) -> int | None:
        """Number of frames of the source; None for a stream."""
        return self._frames.source.num_frames

    @property
    def frame_size(self) -> Size:
        """Width and height of the frames in pixels."""
        return self._frames.size

    @property
    def object_ids(self) -> list[int]:
        """The ids of the objects, in the order in which they were added."""
        return list(self._object_ids)

    @property
    def restored(self) -> int:
        """How often the client has restored the session after the server had lost it."""
        return self._flows.restored

    def cancel(self) -> None:
        """End all running passes of propagate() after their current frame, without an error. Any thread may call it."""
        with self._stops_lock:
            stops = list(self._stops)
        for stop in stops:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # another thread has set it
                stop.set_result(None)

    def _prompt(
        self,
        frame: int,
        object_id: int,
        points: PromptArray,
        labels: PromptArray,
        box: PromptArray,
        mask: PromptArray,
        clear_old_points: bool,
    ) -> Operation:
        """Check a prompt and return its operation.

        Raises:
            PromptError: a part of the prompt has a wrong shape, type or range.
        """
        index = self._frames.inside(_integer("frame", frame))
        arguments: dict[str, Any] = {"frame_index": index, "object_id": _object_id(object_id)}
        if mask is not None:
            if points is not None or labels is not None or box is not None:
                raise PromptError("a mask replaces points and box: give either the mask or the others")
            return Operation(wire.ADD_PROMPT, arguments, index, _checked_mask(mask, self.frame_size))
        if box is not None and not clear_old_points:
            raise PromptError("a box comes before all points: give it with clear_old_points=True")
        prompts = check_prompts(points, labels, box, None, image_size=self.frame_size, mask_size=1)
        if len(prompts) != 1:
            raise PromptError(f"add() takes the prompt of one object, not of {len(prompts)}: call it for each object")
        arguments |= {
            "points": prompts.coords[0].tolist() or None,
            "labels": prompts.labels[0].tolist() or None,
            "box": None if prompts.boxes is None else prompts.boxes[0].tolist(),
            "clear_old_points": bool(clear_old_points),
        }
        return Operation(wire.ADD_PROMPT, arguments, index)

    def _clearing(self, frame: int, object_id: int) -> Operation:
        index = self._frames.inside(_integer("frame", frame))
        return Operation(wire.CLEAR_PROMPTS, {"frame_index": index, "object_id": self._known_id(object_id)})

    def _removal(self, object_id: int) -> Operation:
        return Operation(wire.REMOVE_OBJECT, {"object_id": self._known_id(object_id)})

    def _known_id(self, object_id: int) -> int:
        checked = _object_id(object_id)
        if checked not in self._object_ids:
            raise PromptError(f"there is no object {checked}: the video has {self._object_ids or 'no objects'}")
        return checked

    @staticmethod
    def _tracking(index: int, reverse: bool, is_first: bool) -> Operation:
        arguments = {"frame_index": index, "reverse": bool(reverse), "first": is_first}
        return Operation(wire.PROPAGATE, arguments, index)

    def _pass(
        self,
        start: int | None,
        count: int | None,
        reverse: bool,
        outputs: tuple[str, ...],
        on_progress: OnProgress | None,
    ) -> Pass:
        """Check the arguments of propagate() and return its pass.

        Raises:
            PromptError: there is no prompt, or no such frame.
        """
        earliest = self._earliest()
        first = earliest if start is None else self._frames.inside(_integer("start", start))
        if count is not None and _integer("count", count) < 1:
            raise PromptError(f"count must be at least 1 frame, not {count}")
        left = first + 1 if reverse else None if self._frames.count is None else self._frames.count - first
        total = count if left is None else left if count is None else min(left, count)
        stop: Stop = concurrent.futures.Future()
        with self._stops_lock:
            self._stops.add(stop)
        return Pass(_order(first, total, reverse), total, reverse, outputs, stop, on_progress)

    def _earliest(self) -> int:
        """Return the first frame of the session that a pass can start from.

        Raises:
            PromptError: there is none.
        """
        if self._first_prompted is None:
            raise PromptError("there is nothing to track: give a prompt with add() first")
        return self._first_prompted

    def _note(self, operation: Operation, answer: Tensors) -> None:
        """Note the objects after an operation, which the answer names.

        Raises:
            InferenceError: the served model does not keep the wire contract.
        """
        result = self._model.read_result(answer)
        if not isinstance(result.get("object_ids"), list):
            raise unknown_form(self._model.name)
        self._object_ids = list(result["object_ids"])
        if wire.FIRST_PROMPTED_FRAME in result:
            self._first_prompted = result[wire.FIRST_PROMPTED_FRAME]
        elif not self._object_ids:
            self._first_prompted = None
        elif operation.name == wire.ADD_PROMPT and operation.frame is not None:  # a server of an earlier version
            known = (operation.frame,) if self._first_prompted is None else (operation.frame, self._first_prompted)
            self._first_prompted = min(known)

    def _segments(self, outputs: Tensors, index: int) -> Segments:
        return self._model.read_segments(outputs, self.frame_size, self._frames.outside(index))

    def _prepare(self, index: int) -> bool:
        """Read a frame; return False if the video ends before it."""
        return self._frames.content(index) is not None


def row_outputs(logits: bool) -> tuple[str, ...]:
    """Return the outputs to ask for, with logits or with encoded full-size masks."""
    return WITH_LOGITS if logits else WITH_MASKS


def _order(first: int, total: int | None, reverse: bool) -> Iterator[int]:
    step = -1 if reverse else 1
    index = first
    while total is None or (index - first) * step < total:
        yield index
        index += step


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise PromptError(f"{name} must be a whole number, not {value!r}")
    return int(value)


def _object_id(value: Any) -> int:
    object_id = _integer("object_id", value)
    if abs(object_id) > LARGEST_ID:
        raise PromptError(f"object_id must fit 64 bits, not {object_id}")
    return object_id


def _checked_mask(mask: Any, size: Size) -> BoolArray:
    array = np.asarray(mask)
    width, height = size
    if array.dtype.kind not in "biuf" or array.shape != (height, width):
        raise PromptError(f"mask must be an array ({height},{width}), the size of the frames, not {array.shape}")
    foreground: BoolArray = array.astype(bool)
    return foreground
