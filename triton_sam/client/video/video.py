"""An open video: prompts at any frame become the masks of the objects in all frames."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ...errors import ConfigurationError, PromptError, SamError
from ...families.base import Size
from ...inputs.prompts import PromptArray, check_prompts
from ...inputs.video.base import FrameSource
from ...masks.rle import BoolArray
from ...masks.segment import VideoSegment
from ...transport.base import BaseTransport, Tensors
from ...wire import video as wire
from ...wire.contract import unknown_form
from ..flows import carry
from .flows import WITH_LOGITS, WITH_MASKS, Operation, SessionFlows, VideoModel
from .frames import SessionFrames, Stop, VideoOptions, end, look_ahead

Result = TypeVar("Result")
Segments = dict[int, VideoSegment]
"""The masks of all objects in one frame, by object id."""
OnProgress = Callable[[int, "int | None"], object]
"""Called after each frame with the number of frames done and the number of all frames, None if it is unknown."""
LARGEST_ID = 2**63 - 1
CLOSED = "this video is closed: open it again"


@dataclass(frozen=True)
class Pass:
    """One pass through a video.

    Args:
        order: the frames of the session in the order in which they are tracked.
        total: their number, None if it is unknown.
    """

    order: Iterator[int]
    total: int | None
    reverse: bool
    outputs: tuple[str, ...]
    stop: Stop
    on_progress: OnProgress | None


class Video:
    """An open video, see SAM2VideoClient.open(). Several threads may use it; their calls wait for each other.

    If the server loses the session of the video, the client restores it, and the masks stay the same. A failed call
    changes nothing and can be repeated.
    """

    def __init__(self, model: VideoModel, source: FrameSource, options: VideoOptions, transport: BaseTransport) -> None:
        self._model = model
        self._transport = transport
        self._options = options
        self._frames = SessionFrames(source, options.every, recent=options.ahead + 2)
        self._flows = SessionFlows(model, self._frames, options.snapshot_every)
        self._read = partial(model.read_segments, size=source.size)
        """Reads the masks of an answer about a frame."""
        self._object_ids: list[int] = []
        self._first_prompted: int | None = None
        self._stops: weakref.WeakSet[Stop] = weakref.WeakSet()
        self._stops_lock = threading.Lock()
        self._lock = threading.RLock()
        self._closed: Stop = concurrent.futures.Future()

    @property
    def num_frames(self) -> int | None:
        """Number of frames of the source; None for a stream."""
        return self._frames.source.num_frames

    @property
    def frame_size(self) -> Size:
        """Width and height of the frames in pixels."""
        return self._frames.source.size

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
            for stop in self._stops:
                end(stop)

    def add(
        self,
        frame: int,
        object_id: int,
        points: PromptArray = None,
        labels: PromptArray = None,
        box: PromptArray = None,
        mask: PromptArray = None,
        clear_old_points: bool = True,
        *,
        logits: bool = True,
    ) -> VideoSegment:
        """Add a prompt for one object at one frame; this adds the object if it is new, and corrects it otherwise.

        Args:
            frame: index of the frame, from 0.
            object_id: any 64-bit integer.
            points: (N,2) points, x and y in pixels of the frame.
            labels: (N,): 1 foreground, 0 background. None: all foreground.
            box: (4,) as x1,y1,x2,y2 in pixels.
            mask: (H,W), the object in this frame; it replaces points and box.
            clear_old_points: whether the prompt replaces the earlier points of this object at this frame.
            logits: whether the segment contains its logits; see propagate().

        Returns:
            The mask of the object in this frame.

        Raises:
            PromptError: the prompt has a wrong shape, type or range, there is no such frame, or a limit of the server
                is reached.
            VideoError: the frame cannot be read, for example because the window of a stream no longer contains it.
            ServerError: see triton_sam.errors.
        """
        operation = self._prompt(frame, object_id, points, labels, box, mask, clear_old_points)
        index, checked_id = operation.arguments["frame_index"], operation.arguments["object_id"]
        answer = self._run(operation, row_outputs(logits))
        return self._read(answer, frame=self._frames.outside(index))[checked_id]

    def propagate(
        self,
        start: int | None = None,
        count: int | None = None,
        reverse: bool = False,
        *,
        logits: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Generator[tuple[int, Segments], None, None]:
        """Track all objects from frame to frame.

        Frames are tracked while you iterate; the client only sends the next frames ahead. To stop early, leave the loop
        or call cancel(). You can then correct the objects and continue from any frame.

        Args:
            start: index of the first frame; None: the first frame that has a prompt.
            count: maximum number of frames; None: up to the end of the video.
            reverse: whether to go towards frame 0.
            logits: whether the segments contain their logits, which take 256 KB for each object and frame on the wire
                (1024 px). Without them, the server makes the full-size masks and sends a few KB.
            on_progress: called after each frame with the number of frames done and of all frames (None: unknown).

        Yields:
            The index of a frame, and the masks of all objects by object id.

        Raises:
            PromptError: there is no prompt, or no frame ``start``.
            VideoError: a frame cannot be read.
            ServerError: see triton_sam.errors.
        """
        return self._track(self._pass(start, count, reverse, row_outputs(logits), on_progress), self._read)

    def clear(self, frame: int, object_id: int) -> None:
        """Remove the prompts of an object at a frame.

        Raises:
            PromptError: there is no such frame or object.
            ServerError: see triton_sam.errors.
        """
        self._run(self._clearing(frame, object_id))

    def remove(self, object_id: int) -> None:
        """Remove an object.

        Raises:
            PromptError: there is no such object.
            ServerError: see triton_sam.errors.
        """
        self._run(self._removal(object_id))

    def reset(self) -> None:
        """Remove all objects. The frames stay.

        Raises:
            ServerError: see triton_sam.errors.
        """
        self._run(Operation(wire.RESET_SESSION))

    def close(self) -> None:
        """End the session and close the source. Server errors are ignored, because the server ends idle sessions.

        Later calls, and passes of propagate() with frames left, raise a ConfigurationError.
        """
        self._end()
        try:
            with self._lock:
                carry(self._flows.close(), self._transport)
        finally:
            self._frames.source.close()

    def _end(self) -> None:
        """End all passes, and all waits for a frame of a stream. Later calls raise a ConfigurationError."""
        with self._stops_lock:
            for stop in [*self._stops, self._closed]:
                end(stop, ConfigurationError(CLOSED))

    def _close_quietly(self) -> None:
        with contextlib.suppress(SamError):
            self.close()

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        carry(self._flows.start(), self._transport)

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

    def _pass(
        self,
        start: int | None,
        count: int | None,
        reverse: bool,
        outputs: tuple[str, ...],
        on_progress: OnProgress | None = None,
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
        step = -1 if reverse else 1
        order = itertools.count(first, step) if total is None else range(first, first + step * total, step)
        return Pass(iter(order), total, bool(reverse), outputs, self._new_stop(), on_progress)

    def _new_stop(self) -> Stop:
        stop: Stop = concurrent.futures.Future()
        with self._stops_lock:
            if self._closed.done():
                self._closed.result()  # raises its error
            self._stops.add(stop)
        return stop

    def _earliest(self) -> int:
        """Return the first frame of the session that a pass can start from.

        Raises:
            PromptError: there is none.
        """
        if self._first_prompted is None:
            raise PromptError("there is nothing to track: give a prompt with add() first")
        return self._first_prompted

    def _track(self, current: Pass, read: Callable[..., Result]) -> Generator[tuple[int, Result], None, None]:
        """Track the frames of a pass; yield the index of each with what ``read(answer, frame=index)`` returns."""
        indexes = look_ahead(current.order, self._read_and_send, self._options.ahead, current.stop)
        with contextlib.closing(indexes):
            for done, index in enumerate(indexes):
                arguments = {"frame_index": index, "reverse": current.reverse, "first": done == 0}
                answer = self._run(Operation(wire.PROPAGATE, arguments, index), current.outputs)
                if current.on_progress is not None:
                    current.on_progress(done + 1, current.total)
                frame = self._frames.outside(index)
                yield frame, read(answer, frame=frame)

    def _read_and_send(self, index: int, sends: bool, words: bool = False) -> bool:
        """Read a frame, and send it if ``sends``; return False if the video ends before it."""
        try:
            self._frames.content(index)
        except PromptError:
            return False
        if sends:
            carry(self._flows.upload(index, words), self._transport)
        return True

    def _run(self, operation: Operation, outputs: tuple[str, ...] = ()) -> Tensors:
        """Do an operation, and record the object ids of its answer."""
        if operation.frame is not None and not self._closed.done():
            if operation.name == wire.ADD_PROMPT and self.num_frames is None:  # closing the video ends this wait
                list(look_ahead(iter([operation.frame]), self._read_and_send, 0, self._closed))
            # It must be readable, because restoring the session may need it.
            self._frames.content(operation.frame)
        with self._lock:
            answer = self._carry(operation, outputs)
            result = self._model.read_result(answer)
            if not isinstance(result.get("object_ids"), list):
                raise unknown_form(self._model.name)
            self._object_ids = list(result["object_ids"])
            self._first_prompted = result.get(wire.FIRST_PROMPTED_FRAME)
        return answer

    def _carry(self, operation: Operation, outputs: tuple[str, ...]) -> Tensors:
        flow = self._flows.run(operation, outputs)
        with self._lock:
            if self._closed.done():  # otherwise the operation would start a new session
                raise ConfigurationError(CLOSED)
            try:
                return carry(flow, self._transport)
            finally:
                flow.close()


def row_outputs(logits: bool) -> tuple[str, ...]:
    """Return the outputs to request, with logits or with encoded full-size masks."""
    return WITH_LOGITS if logits else WITH_MASKS


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
