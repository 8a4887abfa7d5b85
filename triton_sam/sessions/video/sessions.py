"""The sessions of a video model: ids, limits and idle time, the data of a session, and its snapshots.

A snapshot holds the state of a tracker, so that a lost session can continue with equal masks. It is a mark, a hash, a
line of JSON and the bytes of all arrays. It contains the outputs that later frames of the same pass attend to, those
that a pass from the first prompted frame attends to, and all prompts. It does not contain the outputs of other frames:
a correction there, after a restart, has no earlier logits.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError, ServerBusyError, UnknownSessionError, VideoError
from ...families.base import Size
from ...families.tracking import Tracking
from ...wire import video
from ..messages import Tensors, check_pixels
from ..tasks import SerialQueue
from .memory import ObjectMemory, Output, Points, TrackedFrames, check_room, drop_outputs, memory_dtype
from .messages import VideoRequest
from .tracker import Tracker

KNOWN_FRAMES = 1024
"""A session stores the ids of this many frames, the most recent ones."""


class VideoSession:
    """One session. Its operations run in sequence, in a SerialQueue; only add_frame() may run at the same time.

    Args:
        frame_size: width and height of the frames, if known.
    """

    def __init__(self, session_id: str, tracker: Tracker, frame_size: Size | None, strand: SerialQueue) -> None:
        self.session_id = session_id
        self.tracker = tracker
        self.strand = strand
        self.used = time.monotonic()
        self.running: list[VideoRequest] = []
        """The requests that run now, in any order. Lists change atomically."""
        self.is_closed = False
        self.known_size = frame_size
        """Width and height of the frames in pixels; None if no frame is known yet."""
        self.image_ids: OrderedDict[int, str] = OrderedDict()
        """The ids of the images of frames. Only add_frame() changes it."""
        self._lock = threading.Lock()
        self.last: tuple[int, str, Tensors] = (0, "", {})
        """Number, operation and answer of the last step."""

    @property
    def frame_size(self) -> Size:
        """Width and height of the frames in pixels."""
        if self.known_size is None:
            raise VideoError("the session has no frame yet: send one first")
        return self.known_size

    def add_frame(self, index: int, image_id: str, size: Size) -> None:
        with self._lock:
            expected = self.known_size or size
            if size != expected:
                raise VideoError(
                    f"frame {index} has {size[0]} x {size[1]} pixels, and earlier frames have {expected[0]} x "
                    f"{expected[1]}: all frames of a video must have one size"
                )
            self.known_size = size
            self.image_ids[index] = image_id
            self.image_ids.move_to_end(index)
            while len(self.image_ids) > KNOWN_FRAMES:
                self.image_ids.popitem(last=False)


class SessionTable:
    """All sessions of a model, from any number of threads."""

    def __init__(self, limit: int, idle_seconds: float, executor: Executor) -> None:
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._executor = executor
        self.by_id: dict[str, VideoSession] = {}
        self._lock = threading.Lock()

    def start(self, tracker: Tracker, frame_size: Size | None) -> VideoSession:
        if frame_size is not None:
            check_pixels("frame_size", frame_size)
        session = VideoSession(secrets.token_hex(16), tracker, frame_size, SerialQueue(self._executor))
        with self._lock:
            if len(self.by_id) >= self._limit:
                raise ServerBusyError(
                    f"{self._limit} video sessions are open here, the limit of this server: close one, or wait until "
                    f"one has been idle for {self._idle_seconds:g} s"
                )
            self.by_id[session.session_id] = session
        return session

    def find(self, request: VideoRequest) -> VideoSession | None:
        """Return the session of a request, and mark it as used; None for start_session."""
        if request.operation == video.START_SESSION:
            return None
        with self._lock:
            session = self.by_id.get(request.session_id)
            if session is None:
                unknown = repr(request.session_id[:64])
                raise UnknownSessionError(f"unknown or expired video session {unknown}: start a session")
            session.used = time.monotonic()
        return session

    def close(self, session: VideoSession) -> None:
        """Remove a session after its running operation has ended."""
        session.is_closed = True
        with self._lock:
            self.by_id.pop(session.session_id, None)

    def close_idle(self) -> int:
        """Close the sessions that were unused for the idle time; return their number."""
        earliest = time.monotonic() - self._idle_seconds
        with self._lock:
            idle = [
                each
                for each in self.by_id.values()
                if each.used < earliest and not (each.running or each.strand.is_busy)
            ]
        for session in idle:
            self.close(session)
        return len(idle)


MARK = b"triton_sam video 1\n"
DIGEST_BYTES = 16
_KINDS = ("prompted", "tracked", "new_prompted", "new_tracked")


def write_snapshot(tracker: Tracker, frame_size: Size | None, identity: str) -> bytes:
    """Return the state of a tracker as bytes.

    Args:
        frame_size: width and height of the frames, if a frame is known.
    """
    arrays: list[npt.NDArray[Any]] = []
    state = {
        "identity": identity,
        "num_frames": tracker.num_frames,
        "frame_size": frame_size,
        "position": tracker.position,
        "objects": [_describe(name, memory, tracker, arrays) for name, memory in tracker.objects.items()],
    }
    head = json.dumps(state, separators=(",", ":")).encode() + b"\n"  # noqa: TID251 - read only here
    body = b"".join([head, *(np.ascontiguousarray(array).tobytes() for array in arrays)])
    return MARK + blake2b(body, digest_size=DIGEST_BYTES).digest() + body


def read_snapshot(content: bytes, tracker: Tracker, identity: str) -> Size | None:
    """Fill a new tracker with a state.

    Returns:
        Width and height of the frames, if a frame was known.
    """
    try:
        mark, rest = content[: len(MARK)], content[len(MARK) :]
        digest, body = rest[:DIGEST_BYTES], rest[DIGEST_BYTES:]
        if mark != MARK or blake2b(body, digest_size=DIGEST_BYTES).digest() != digest:
            raise ValueError("it is cut off or changed")
        head, _, data = body.partition(b"\n")
        state = json.loads(head)
        is_ours = state["identity"] == identity
        size = _fill(tracker, state, _Arrays(data, tracker.table)) if is_ours else None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("the snapshot is damaged, cut off or changed: start a session without it") from error
    if not is_ours:
        raise InputError("the snapshot was made with other models or weights: start a session without it")
    return size


def _describe(name: int, memory: ObjectMemory, tracker: Tracker, arrays: list[npt.NDArray[Any]]) -> dict[str, Any]:
    outputs = {}
    for kind in _KINDS:
        kept = dict(_kept(tracker, memory)) if kind == "tracked" else getattr(memory, kind)
        outputs[kind] = [_output(frame, output, arrays) for frame, output in kept.items()]
    for points in memory.points.values():
        arrays += [points.coords, points.labels]
    return {
        "id": name,
        **outputs,
        "points": [[frame, len(points.labels)] for frame, points in memory.points.items()],
        "masked": sorted(memory.masked),
        "runs": [[frames[0], frames[-1], frames.step, reverse] for frames, reverse in memory.frames.runs],
    }


def _output(frame: int, output: Output, arrays: list[npt.NDArray[Any]]) -> list[Any]:
    parts = [array for array in (output.logits, output.memory) if array is not None]
    arrays += [output.pointer, *parts]
    return [frame, output.score, output.iou, output.logits is not None, output.memory is not None]


def _kept(tracker: Tracker, memory: ObjectMemory) -> Iterator[tuple[int, Output]]:
    """Yield the outputs of tracked frames that later frames may attend to, reduced to the parts that they use."""
    table, start = tracker.table, tracker.first_prompted
    for frame, output in memory.tracked.items():
        near = [] if start is None else [abs(frame - start)]
        if tracker.position is not None:
            behind = (tracker.position[0] - frame) * (-1 if tracker.position[1] else 1)
            near += [behind] if behind >= 0 else []
        is_last = tracker.position is not None and frame == tracker.position[0]
        distance = min(near, default=table.pointers)
        if distance < table.pointers:
            yield (
                frame,
                Output(
                    output.pointer,
                    output.score,
                    output.iou,
                    output.logits if is_last else None,
                    output.memory if distance <= table.memories else None,
                ),
            )


class _Arrays:
    """Reads arrays from bytes, in sequence."""

    def __init__(self, data: bytes, table: Tracking) -> None:
        self._data = data
        self._at = 0
        self._table = table

    def floats(self, *shape: int) -> npt.NDArray[np.float32]:
        return self._take(np.dtype(np.float32), shape)

    def output(self, row: Sequence[Any]) -> Output:
        _, score, iou, has_logits, has_memory = row
        table = self._table
        return Output(
            self.floats(table.pointer_channels),
            float(score),
            float(iou),
            self.floats(*table.logits_shape) if has_logits else None,
            self._take(memory_dtype(table), table.memory_shape) if has_memory else None,
        )

    def end(self) -> None:
        """Raise an error for bytes after the last array."""
        if self._at != len(self._data):
            raise ValueError("bytes are left")

    def _take(self, kind: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        count = int(np.prod(shape))
        array = np.frombuffer(self._data, kind, count, self._at).reshape(shape).copy()
        self._at += count * kind.itemsize
        return array


def _fill(tracker: Tracker, state: dict[str, Any], arrays: _Arrays) -> Size | None:
    """Fill a tracker; return the size of the frames."""
    tracker.num_frames = None if state["num_frames"] is None else _whole(state["num_frames"], 1)
    position = state["position"]
    tracker.position = None if position is None else (_whole(position[0]), bool(position[1]))
    tracker.limits.check_objects(len(state["objects"]))
    objects = {}
    for described in state["objects"]:
        memory = ObjectMemory()
        for kind in _KINDS:
            getattr(memory, kind).update({_whole(row[0]): arrays.output(row) for row in described[kind]})
        for frame, count in described["points"]:
            tracker.limits.check_points(_whole(count))
            memory.points[_whole(frame)] = Points(arrays.floats(count, 2), arrays.floats(count))
        memory.masked = {_whole(frame) for frame in described["masked"]}
        memory.frames = TrackedFrames(_run(*row) for row in described["runs"])
        name = int(described["id"])
        tracker.limits.check_prompted_frames(name, len(memory.prompts()))
        _check_parts(memory)
        objects[name] = memory
    arrays.end()
    limits, table = tracker.limits, tracker.table
    check_room({name: memory.prompts() for name, memory in objects.items()}, limits, table)
    tracker.objects = objects
    tracker.count()
    frame = tracker.first_prompted or 0 if tracker.position is None else tracker.position[0]
    is_stream = tracker.num_frames is None
    tracker.kept_bytes = drop_outputs(objects.values(), frame, tracker.kept_bytes, is_stream, limits, table)
    size = state["frame_size"]
    return None if size is None else (_whole(size[0], 1), _whole(size[1], 1))


def _run(first: Any, last: Any, step: Any, reverse: Any) -> tuple[range, bool]:
    """Return the frames first, first + step, ..., last."""
    step = step or 1  # earlier versions wrote 0 for a single frame
    frames = range(_whole(first), _whole(last) + (1 if step > 0 else -1), step)
    if not frames:
        raise ValueError("a run has no frames")
    return frames, bool(reverse)


def _check_parts(memory: ObjectMemory) -> None:
    """Raise an error for outputs of prompts that lack parts required by a pass."""
    new = (*memory.new_prompted.values(), *memory.new_tracked.values())
    if any(output.logits is None or output.memory is None for output in memory.prompted.values()):
        raise ValueError("a prompted frame has no memory")
    if any(output.logits is None for output in new):
        raise ValueError("a prompt has no logits")


def _whole(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 31:
        raise ValueError(f"{value!r} is not a frame number")
    return value
