"""The memory of one object: its prompts, the outputs of its frames, and the choice of outputs that a frame attends to.

Reference: SAM2Base._prepare_memory_conditioned_features, SAM2VideoPredictor.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
CONFIRMED_FRAMES = 4
"""An object keeps only the most recent of its confirmed frames as prompted frames. SAM3 attends to no more."""
STREAM_FRAMES = 128
"""A stream keeps only the outputs of this many frames before the tracked frame, so that its memory stays bounded."""


def memory_dtype(table: Tracking) -> np.dtype[Any]:
    """Return the dtype in which a session keeps memories: uint16 for the bits of bfloat16, or float32."""
    return np.dtype(np.uint16 if table.bfloat16_memories else np.float32)


@dataclass(eq=False)
class Output:
    """The output for one object in one frame.

    Args:
        score: logit, above 0 if the object is visible.
        iou: the predicted IoU of the mask, about 0..1.
        logits: float32 (1,s,s); None if the session has dropped them.
        memory: in the shape of Tracking.memory_shape; None if it is not encoded yet, or dropped.
    """

    pointer: FloatArray
    score: float
    iou: float
    logits: FloatArray | None = None
    memory: StoredMemory | None = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.pointer, self.logits, self.memory) if array is not None)


class Selected(NamedTuple):
    """The memories and pointers that an object attends to in one frame. Objects with equal numbers share a call.

    Args:
        memories: (age, memory) pairs: the prompted frames, age 0, then the previous frames, oldest first.
        pointers: (age, pointer) pairs: the prompted frames in the past, then the previous frames, newest first. An age
            is relative to the largest age possible.
    """

    memories: list[tuple[int, StoredMemory]]
    pointers: list[tuple[np.float32, FloatArray]]


@dataclass(frozen=True, eq=False)
class Points:
    """The points of a prompt, float32 (N,2) in pixels of the encoder's image, and their labels, float32 (N,)."""

    coords: FloatArray
    labels: FloatArray


class TrackedFrames:
    """The frames that a pass has visited, each with the direction of its last visit.

    They are kept as runs, ranges of frames with a direction, so that memory stays bounded for a video without an end.
    """

    def __init__(self, runs: Iterable[tuple[range, bool]] = ()) -> None:
        self.runs = list(runs)

    def direction(self, frame: int) -> bool | None:
        """Return whether the last visit of a frame was in reverse; None if no pass has visited it."""
        return next((reverse for frames, reverse in reversed(self.runs) if frame in frames), None)

    def add(self, frame: int, reverse: bool) -> None:
        if self.direction(frame) == reverse:
            return
        if self.runs:
            last, direction = self.runs[-1]
            step = frame - last[-1]
            if direction == reverse and step and (len(last) == 1 or step == last.step):
                self.runs[-1] = range(last[0], frame + step, step), reverse
                return
        self.runs.append((range(frame, frame + 1), reverse))
        del self.runs[:-MAX_RUNS]

    def remove(self, frame: int) -> None:
        parts = []
        for frames, reverse in self.runs:
            at = frames.index(frame) if frame in frames else len(frames)
            parts += [(part, reverse) for part in (frames[:at], frames[at + 1 :]) if part]
        self.runs = parts


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
        kinds = (self.prompted, self.tracked, self.new_prompted, self.new_tracked)
        return sum(output.nbytes for outputs in kinds for output in outputs.values())

    def prompts(self) -> set[int]:
        """Return the frames that have prompts or outputs of prompts."""
        return {*self.prompted, *self.new_prompted, *self.points, *self.masked}

    def is_tracked(self, frame: int) -> bool:
        """Return whether a tracked frame without prompt still has its logits."""
        output = self.tracked.get(frame)
        return output is not None and output.logits is not None and frame not in self.new_tracked

    def confirm(self, frame: int) -> None:
        """Let the output of a tracked frame count as that of a prompt, and release the oldest such frame."""
        self.prompted[frame] = self.tracked.pop(frame)
        self.release(*self.confirmed()[:-CONFIRMED_FRAMES])

    def confirmed(self) -> list[int]:
        """Return the frames of confirm(), which have no prompt."""
        return [each for each in self.prompted if each not in self.points and each not in self.masked]

    def release(self, *frames: int) -> None:
        """Undo confirm(); frames with prompts stay."""
        for frame in set(frames).intersection(self.confirmed()):
            self.tracked[frame] = self.prompted.pop(frame)

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
        prompted, others = self.prompted, ChainMap(self.tracked)
        if table.prompted_memories is not None and len(prompted) > table.prompted_memories:
            prompted = {index: prompted[index] for index in closest(prompted, frame, table.prompted_memories)}
            # The other prompted frames count as frames without a prompt.
            others.maps.append({index: each for index, each in self.prompted.items() if index not in prompted})
        memories = [(0, output.memory) for output in prompted.values() if output.memory is not None]
        for age in range(table.memories, 0, -1):
            output = others.get(frame - age * step)
            if output is not None and output.memory is not None:
                memories.append((age, output.memory))
        past = [(age, output) for index, output in prompted.items() if (age := (frame - index) * step) >= 0]
        limit = table.pointers if num_frames is None else min(num_frames, table.pointers)
        for age in range(1, limit):
            output = others.get(frame - age * step)
            if output is not None:
                past.append((age, output))
        longest = np.float32(max(1, limit - 1))
        return Selected(memories, [(np.float32(age) / longest, output.pointer) for age, output in past])


def closest(prompted: Collection[int], frame: int, count: int) -> Collection[int]:
    """Return the prompted frames that a frame attends to: the nearest on each side, and the closest of the others."""
    before = max((index for index in prompted if index < frame), default=None)
    after = min((index for index in prompted if index >= frame), default=None)
    chosen = [index for index in (before, after) if index is not None]
    rest = sorted((index for index in prompted if index not in chosen), key=lambda index: abs(index - frame))
    return (chosen + rest)[:count]


@dataclass(frozen=True)
class Limits:
    """The limits of each session of a model, by the names of the model's parameters; see wire.video.parameters."""

    max_objects: int = video.DEFAULT_MAX_OBJECTS
    max_prompted_frames: int = video.DEFAULT_MAX_PROMPTED_FRAMES
    session_bytes: int = video.DEFAULT_SESSION_BYTES

    def check_objects(self, count: int) -> None:
        """Raise an error for more objects than a session may have."""
        if count > self.max_objects:
            raise PromptError(f"max_objects: a session may have at most {self.max_objects} objects: remove one first")

    def check_prompted_frames(self, object_id: int, count: int) -> None:
        """Raise an error for more prompted frames than an object may have."""
        if count > self.max_prompted_frames:
            raise PromptError(
                f"max_prompted_frames: object {object_id} may have prompts in at most {self.max_prompted_frames} "
                "frames: clear the prompts of one first"
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
    objects: Collection[ObjectMemory], frame: int, kept: int, is_stream: bool, limits: Limits, table: Tracking
) -> int:
    """Drop the outputs farthest from a frame until the rest fits, but keep those of prompts and for the next frames.

    Outputs beyond the reach of pointers are dropped first, then memories and logits beyond the reach of memories, then
    logits, which only corrections need.

    Args:
        kept: the size of all outputs in bytes. It is counted and not summed here, because every frame calls this.

    Returns:
        The size of the remaining outputs in bytes.
    """
    if is_stream:
        for memory in objects:
            for index in [index for index in memory.tracked if abs(index - frame) > STREAM_FRAMES]:
                kept -= _drop_all(memory, index)
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
