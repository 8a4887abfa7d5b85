"""The memory of one object: its prompts, the outputs of its frames, and the choice of outputs that a frame attends to.

Reference: SAM2Base._prepare_memory_conditioned_features, SAM2VideoPredictor.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import PromptError
from ...families.base import FloatArray
from ...families.tracking import Tracking
from ...wire import contract, video

Halves = npt.NDArray[np.uint16]
StoredMemory = Halves | FloatArray
MAX_RUNS = 256
"""Maximum number of runs that are kept. A pass over every frame, or every n-th frame, is one run."""
STREAM_FRAMES = 128
"""A stream keeps only the outputs of this many frames before the tracked frame, so that its memory stays bounded."""


def to_bfloat16(values: FloatArray) -> Halves:
    """Round float32 to bfloat16 (to the nearest, ties to even), and return the bits. NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    is_nan = np.isnan(values)
    return np.where(is_nan, np.uint16(0x7FC0), rounded) if is_nan.any() else rounded


def memory_dtype(table: Tracking) -> np.dtype[Any]:
    """Return the dtype in which a session keeps memories: uint16 for the bits of bfloat16, or float32."""
    return np.dtype(np.uint16 if table.bfloat16_memories else np.float32)


def stored_memory(memory: FloatArray, table: Tracking) -> StoredMemory:
    """Return memories in the form that a session keeps."""
    return to_bfloat16(memory) if table.bfloat16_memories else memory


def stacked_memories(rows: Sequence[Sequence[StoredMemory]], table: Tracking) -> FloatArray:
    """Return the memories of several objects, each with equally many, as float32 (objects,memories,*shape)."""
    if table.bfloat16_memories:
        bits = np.empty((len(rows), len(rows[0]), *rows[0][0].shape), np.uint32)
        for place, row in enumerate(rows):
            for column, memory in enumerate(row):
                bits[place, column] = memory
        bits <<= 16
        return bits.view(np.float32)
    found: FloatArray = np.array(rows, np.float32)
    return found


@dataclass(eq=False)
class Output:
    """The output for one object in one frame.

    Args:
        score: logit, above 0 if the object is visible.
        iou: the predicted IoU of the mask, about 0..1.
        logits: float32 (1,s,s); None if the session has dropped them.
        memory: in the shape of Tracking.memory_shape, from stored_memory(); None if it is not encoded yet, or dropped.
    """

    pointer: FloatArray
    score: float
    iou: float
    logits: FloatArray | None = None
    memory: StoredMemory | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(array.nbytes for array in (self.pointer, self.logits, self.memory) if array is not None)


@dataclass(eq=False)
class Selected:
    """The outputs that an object attends to in one frame, with their ages.

    Args:
        memories: (age, output) pairs: the prompted frames, age 0, then the previous frames, oldest first.
        pointers: (age, output) pairs: the prompted frames in the past, then the previous frames, newest first.
    """

    memories: list[tuple[int, Output]]
    pointers: list[tuple[int, Output]]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of memories and of pointers. Objects of equal shape can be computed in one call."""
        return len(self.memories), len(self.pointers)


@dataclass(frozen=True, eq=False)
class Points:
    """The points of a prompt, float32 (N,2) in pixels of the encoder's image, and their labels, float32 (N,)."""

    coords: FloatArray
    labels: FloatArray


@dataclass
class Run:
    """Frames first, first + step, ..., last, visited in one direction. A single frame has step 0."""

    first: int
    last: int
    step: int
    reverse: bool

    def __contains__(self, frame: int) -> bool:
        low, high = min(self.first, self.last), max(self.first, self.last)
        return low <= frame <= high and (self.step == 0 or (frame - self.first) % abs(self.step) == 0)

    def extend(self, frame: int, reverse: bool) -> bool:
        """Append a frame; return False if it does not continue the run."""
        step = frame - self.last
        if reverse != self.reverse or step == 0 or self.step not in (0, step):
            return False
        self.last, self.step = frame, step
        return True

    def without(self, frame: int) -> list[Run]:
        """Return the runs that remain after removing a frame of this run."""
        parts = ((self.first, frame - self.step), (frame + self.step, self.last)) if self.step else ()
        return [
            Run(first, last, self.step if first != last else 0, self.reverse)
            for first, last in parts
            if first == last or (last - first > 0) == (self.step > 0)
        ]


class TrackedFrames:
    """The frames that a pass has visited, each with the direction of its last visit.

    They are kept as runs, so that memory stays bounded for a video without an end.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs = list(runs)

    def direction(self, frame: int) -> bool | None:
        """Return whether the last visit of a frame was in reverse; None if no pass has visited it."""
        return next((run.reverse for run in reversed(self.runs) if frame in run), None)

    def add(self, frame: int, reverse: bool) -> None:
        """Record a visit."""
        if self.direction(frame) == reverse:
            return
        if self.runs and self.runs[-1].extend(frame, reverse):
            return
        self.runs.append(Run(frame, frame, 0, reverse))
        del self.runs[:-MAX_RUNS]

    def remove(self, frame: int) -> None:
        """Remove all visits of a frame."""
        self.runs = [part for run in self.runs for part in (run.without(frame) if frame in run else [run])]


@dataclass(eq=False)
class ObjectMemory:
    """The state of one object in a session.

    Each dictionary has the frames in their order of arrival, because the order of memories in a call affects how sums
    are rounded.

    Args:
        prompted: outputs of prompted frames, to which every other frame attends (``cond_frame_outputs``).
        new_prompted: outputs of prompts that the next pass moves to ``prompted`` (``temp_output_dict``).
        new_tracked: outputs of corrections that the next pass moves to ``tracked``.
        frames: the frames that a pass has visited, with its direction.
    """

    prompted: dict[int, Output] = field(default_factory=dict)
    tracked: dict[int, Output] = field(default_factory=dict)
    new_prompted: dict[int, Output] = field(default_factory=dict)
    new_tracked: dict[int, Output] = field(default_factory=dict)
    points: dict[int, Points] = field(default_factory=dict)
    masked: set[int] = field(default_factory=set)
    frames: TrackedFrames = field(default_factory=TrackedFrames)

    @property
    def nbytes(self) -> int:
        """Size of all outputs in bytes."""
        kinds = (self.prompted, self.tracked, self.new_prompted, self.new_tracked)
        return sum(output.nbytes for outputs in kinds for output in outputs.values())

    def prompts(self) -> set[int]:
        """Return the frames that have prompts or outputs of prompts."""
        return {*self.prompted, *self.new_prompted, *self.points, *self.masked}

    def shown(self, frame: int, is_new_prompted: bool) -> Output | None:
        """Return the output of a frame after a prompt, see _consolidate_temp_output_across_obj."""
        new = self.new_prompted if is_new_prompted else self.new_tracked
        return new.get(frame) or self.prompted.get(frame) or self.tracked.get(frame)

    def select(self, frame: int, reverse: bool, num_frames: int | None, table: Tracking) -> Selected:
        """Return the outputs that a frame attends to.

        Args:
            num_frames: number of frames of the video; None if it is unknown.
        """
        step = -1 if reverse else 1
        prompted = {index: self.prompted[index] for index in closest(self.prompted, frame, table.prompted_memories)}
        unselected = {index: output for index, output in self.prompted.items() if index not in prompted}
        others = ChainMap(self.tracked, unselected)  # these count as frames without a prompt
        memories = [(0, output) for output in prompted.values() if output.memory is not None]
        for age in range(table.memories, 0, -1):
            output = others.get(frame - age * step)
            if output is not None and output.memory is not None:
                memories.append((age, output))
        pointers = [
            ((frame - index) * step, output) for index, output in prompted.items() if (frame - index) * step >= 0
        ]
        for age in range(1, pointer_limit(num_frames, table)):
            output = others.get(frame - age * step)
            if output is not None:
                pointers.append((age, output))
        return Selected(memories, pointers)


def closest(prompted: Collection[int], frame: int, count: int | None) -> Collection[int]:
    """Return the prompted frames that a frame attends to: the nearest on each side, and the closest of the others.

    Args:
        count: maximum number of frames; None: all.
    """
    if count is None or len(prompted) <= count:
        return prompted
    before = max((index for index in prompted if index < frame), default=None)
    after = min((index for index in prompted if index >= frame), default=None)
    chosen = [index for index in (before, after) if index is not None]
    rest = sorted((index for index in prompted if index not in chosen), key=lambda index: abs(index - frame))
    return (chosen + rest)[:count]


def pointer_limit(num_frames: int | None, table: Tracking) -> int:
    """Return the maximum number of pointers; a stream is assumed to have more frames than pointers."""
    return table.pointers if num_frames is None else min(num_frames, table.pointers)


@dataclass(frozen=True)
class Limits:
    """The limits of each session of a model; see wire.video.parameters."""

    objects: int = video.DEFAULT_MAX_OBJECTS
    prompted_frames: int = video.DEFAULT_MAX_PROMPTED_FRAMES
    session_bytes: int = video.DEFAULT_SESSION_BYTES

    def as_json(self) -> dict[str, int]:
        """Return the limits by the names of the model's parameters."""
        return {
            "max_objects": self.objects,
            "max_prompted_frames": self.prompted_frames,
            "session_bytes": self.session_bytes,
        }

    def check_objects(self, count: int) -> None:
        """Raise an error for more objects than a session may have."""
        if count > self.objects:
            raise PromptError(f"max_objects: a session may have at most {self.objects} objects: remove one first")

    def check_prompted_frames(self, object_id: int, count: int) -> None:
        """Raise an error for more prompted frames than an object may have."""
        if count > self.prompted_frames:
            raise PromptError(
                f"max_prompted_frames: object {object_id} may have prompts in at most {self.prompted_frames} frames: "
                "clear the prompts of one first"
            )

    @staticmethod
    def check_points(count: int) -> None:
        """Raise an error for more points than one object may have in a frame. A box counts as two points."""
        if count > contract.MAX_POINTS:
            raise PromptError(f"{count} points: an object may have at most {contract.MAX_POINTS} in a frame")


def check_room(prompted: Mapping[int, Collection[int]], limits: Limits, table: Tracking) -> None:
    """Raise an error for prompts whose outputs, which are never dropped, would not fit into ``session_bytes``."""
    memory, logits, pointer = sizes(table)
    frames = sum(map(len, prompted.values()))
    window = len(prompted) * (table.memories * memory + table.pointers * pointer)
    needed = frames * (memory + logits + pointer) + window
    if needed > limits.session_bytes:
        raise PromptError(
            f"session_bytes: {len(prompted)} object(s) with {frames} prompted frame(s) need {needed} bytes, and a "
            f"session may have {limits.session_bytes}: remove objects or prompts first"
        )


def sizes(table: Tracking) -> tuple[int, int, int]:
    """Return the bytes of a memory, of low-resolution logits (float32) and of a pointer (float32)."""
    memory = memory_dtype(table).itemsize * math.prod(table.memory_shape)
    return memory, 4 * math.prod(table.logits_shape), 4 * table.pointer_channels


def drop_outputs(
    objects: Collection[ObjectMemory], frame: int, is_stream: bool, limits: Limits, table: Tracking
) -> int:
    """Drop the outputs farthest from a frame until the rest fits, but keep those of prompts and for the next frames.

    Outputs beyond the reach of pointers are dropped first, then memories and logits beyond the reach of memories, then
    logits, which only corrections need.

    Returns:
        The size of the remaining outputs in bytes.
    """
    if is_stream:
        for memory in objects:
            for index in [index for index in memory.tracked if abs(index - frame) > STREAM_FRAMES]:
                del memory.tracked[index]
    kept = sum(memory.nbytes for memory in objects)
    steps: tuple[tuple[int, Callable[[ObjectMemory, int], int]], ...] = (
        (table.pointers - 1, _drop_all),
        (table.memories, _drop_memory),
        (0, _drop_logits),
    )
    for reach, drop in steps:
        if kept <= limits.session_bytes:
            break
        far = [(abs(index - frame), index, memory) for memory in objects for index in memory.tracked]
        for _, index, memory in sorted((each for each in far if each[0] > reach), key=lambda each: -each[0]):
            kept -= drop(memory, index)
            if kept <= limits.session_bytes:
                break
    return kept


def _drop_all(memory: ObjectMemory, frame: int) -> int:
    return memory.tracked.pop(frame).nbytes


def _drop_memory(memory: ObjectMemory, frame: int) -> int:
    output = memory.tracked[frame]
    before = output.nbytes
    output.memory = output.logits = None
    return before - output.nbytes


def _drop_logits(memory: ObjectMemory, frame: int) -> int:
    output: Output = memory.tracked[frame]
    before = output.nbytes
    output.logits = None
    return before - output.nbytes
