"""The limits of a session: how many objects and prompts it may have, and which outputs it drops for lack of room."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ...errors import PromptError
from ...families.tracking import Tracking
from ...wire import contract, video
from .memory import ObjectMemory, Output, memory_dtype

STREAM_FRAMES = 128
"""A stream keeps the outputs of this many frames behind the one that is tracked, and no more, so that its memory stays
the same soon."""


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
        """Refuse more objects than a session may have."""
        if count > self.objects:
            raise PromptError(f"max_objects: a session may have at most {self.objects} objects: remove one first")

    def check_prompted_frames(self, object_id: int, count: int) -> None:
        """Refuse more prompted frames than an object may have."""
        if count > self.prompted_frames:
            raise PromptError(
                f"max_prompted_frames: object {object_id} may have prompts in at most {self.prompted_frames} frames: "
                "clear the prompts of one first"
            )

    @staticmethod
    def check_points(count: int) -> None:
        """Refuse more points than one object may have in a frame. A box counts as two."""
        if count > contract.MAX_POINTS:
            raise PromptError(f"{count} points: an object may have at most {contract.MAX_POINTS} in a frame")


def check_room(prompted: Mapping[int, Collection[int]], limits: Limits, table: Tracking) -> None:
    """Refuse prompts whose outputs, which are never dropped, would not fit into ``session_bytes``."""
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
    """Drop the outputs farthest from a frame until the rest fits; never those of prompts, or those that the next need.

    Outputs beyond the reach of pointers go first, then memories and logits beyond the reach of memories, then logits,
    which only corrections need.

    Returns:
        The size of the outputs that are left, in bytes.
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
