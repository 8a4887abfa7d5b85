"""The computations of one session: prompts, passes and corrections, and the outputs that it keeps.

Pure logic over TrackingModels. Reference: sam2.sam2_video_predictor.SAM2VideoPredictor.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import PromptError
from ...families.base import FloatArray
from ...families.tracking import MAX_MEMORIES, Tracking
from ...inputs.images import mask_prompt
from ..images import NoRoomError
from .memory import (
    Limits,
    ObjectMemory,
    Output,
    Points,
    Selected,
    check_room,
    drop_outputs,
)
from .models import DecoderPrompt, Embeddings, TrackingModels

Result = TypeVar("Result")

LOGIT_LIMIT = 32.0
"""Logits of an earlier output are clamped to -32..32 before they refine it."""
NO_POINT, NO_LABEL = np.zeros((1, 1, 2), np.float32), np.full((1, 1), -1, np.float32)
"""The padding point of an object without points, see SAM2Base._forward_sam_heads."""
PRESENT, ABSENT = 10.0, -10.0
"""Scores of an object whose prompt is a mask, see SAM2Base._use_mask_as_output."""


@dataclass(frozen=True)
class Frames:
    """Access to the frames of a request, and calls that free memory if needed.

    Args:
        find: returns the embeddings of a frame.
        with_room: runs a call; if it raises NoRoomError, frees memory and retries. Its first argument is the step.
    """

    find: Callable[[int], Embeddings]
    with_room: Callable[[str, Callable[[], Any]], Any]


@dataclass(frozen=True, eq=False)
class Row:
    """One object in one frame. ``output`` is None if the session has no output of the object there."""

    frame: int
    object_id: int
    output: Output | None


class Tracker:
    """Tracks the objects of one video. It is not thread-safe: its session runs operations in sequence.

    Args:
        num_frames: number of frames of the video; None for a stream.
    """

    def __init__(
        self, models: TrackingModels, table: Tracking, image_size: int, num_frames: int | None, limits: Limits
    ) -> None:
        self.objects: dict[int, ObjectMemory] = {}
        self.num_frames = num_frames
        self.position: tuple[int, bool] | None = None
        """The last tracked frame, and whether in reverse."""
        self.kept_bytes = 0
        """Size of all outputs in bytes. Passes count what they change, other operations count() everything."""
        self.limits = limits
        self.table = table
        self._models = models
        self._image_size = image_size

    def count(self) -> None:
        self.kept_bytes = sum(memory.nbytes for memory in self.objects.values())

    @property
    def first_prompted(self) -> int | None:
        """The first frame that a pass can start from; None without a prompt."""
        prompted = (frame for each in self.objects.values() for frame in (*each.prompted, *each.new_prompted))
        return min(prompted, default=None)

    def add_points(
        self, frame: int, object_id: int, points: Points, clear_old_points: bool, frames: Frames
    ) -> list[Row]:
        """Add points, or replace them; see SAM2VideoPredictor.add_new_points_or_box.

        Args:
            points: points in pixels of the encoder's image; the corners of a box come first, with labels 2 and 3.
            clear_old_points: whether the points replace the earlier points of the object in this frame.

        Returns:
            One row for each object.
        """
        memory = self._memory_for(object_id, frame)
        old = None if clear_old_points else memory.points.get(frame)
        if old is not None:
            points = Points(np.concatenate([old.coords, points.coords]), np.concatenate([old.labels, points.labels]))
        self.limits.check_points(len(points.coords))
        memory.release(frame)
        direction = memory.frames.direction(frame)
        is_new = direction is None or not memory.prompted
        previous = memory.shown(frame, is_new)
        mask = None if previous is None or previous.logits is None else previous.logits[None]
        prompt = DecoderPrompt(
            points.coords[None],
            points.labels[None],
            len(points.coords) <= self.table.multimask_points,
            mask=None if mask is None else np.clip(mask, -LOGIT_LIMIT, LOGIT_LIMIT),
        )
        selected = None if is_new else memory.select(frame, bool(direction), self.num_frames, self.table)
        embeddings = frames.find(frame)
        output = frames.with_room("prompt", lambda: self._decode_prompt(embeddings, selected, prompt))
        memory.points[frame] = points
        memory.masked.discard(frame)
        return self._keep(frame, object_id, memory, output, is_new)

    def add_mask(self, frame: int, object_id: int, mask: npt.NDArray[np.bool_], frames: Frames) -> list[Row]:
        """Add a mask as prompt; see SAM2VideoPredictor.add_new_mask and SAM2Base._use_mask_as_output.

        Args:
            mask: bool (H,W) at the size of the frames.

        Returns:
            One row for each object.
        """
        memory = self._memory_for(object_id, frame)
        pixels = mask_prompt(mask, self._image_size)
        is_empty = not pixels.any()
        embeddings = frames.find(frame)

        def compute() -> Output:
            low, logits = self._models.prompt_mask(pixels)
            prompt = DecoderPrompt(NO_POINT, NO_LABEL, False, -1 if is_empty else 1, low)
            pointer = self._models.decode(embeddings, None, prompt).pointers[0]
            return Output(pointer, ABSENT if is_empty else PRESENT, 1.0, logits[0])

        output = frames.with_room("prompt", compute)
        memory.release(frame)
        is_new = memory.frames.direction(frame) is None or not memory.prompted
        memory.masked.add(frame)
        memory.points.pop(frame, None)
        return self._keep(frame, object_id, memory, output, is_new)

    def begin_pass(self, frames: Frames) -> None:
        """Encode the memories of new prompts; see SAM2VideoPredictor.propagate_in_video_preflight."""
        self.check_prompts()
        waiting: dict[int, list[Output]] = defaultdict(list)
        for memory in self.objects.values():
            for outputs in (memory.new_tracked, memory.new_prompted):
                for frame, output in outputs.items():
                    if output.memory is None:
                        waiting[frame].append(output)
        for frame, group in waiting.items():
            embeddings = frames.find(frame)
            for part in self._parts(group):
                masks = np.stack([output.logits for output in part if output.logits is not None])
                scores = np.array([[output.score] for output in part], np.float32)
                self._encode(embeddings, part, masks, scores, True, frames)
        for memory in self.objects.values():
            memory.tracked |= memory.new_tracked
            memory.prompted |= memory.new_prompted
            memory.new_tracked, memory.new_prompted = {}, {}
            for frame in memory.prompted:
                memory.tracked.pop(frame, None)
        self.count()

    def check_prompts(self) -> None:
        """Raise an error for a pass without objects, or with an object without prompts."""
        if not self.objects:
            raise PromptError("there is no object to track: add a prompt first")
        for object_id, memory in self.objects.items():
            if not memory.prompted and not memory.new_prompted:
                raise PromptError(f"object {object_id} has no prompt: add one, or remove the object")

    def track(self, frame: int, reverse: bool, frames: Frames, remembers: bool = True) -> list[Row]:
        """Track all objects in one frame; see SAM2VideoPredictor.propagate_in_video.

        Objects added after the pass began wait for the next pass.

        Args:
            remembers: whether to encode the memories of the outputs; otherwise update_memories() does.

        Returns:
            One row for each object.
        """
        known = {object_id: memory for object_id, memory in self.objects.items() if memory.prompted}
        if not known:
            raise PromptError("no pass was begun: the first request of a pass needs first = true")
        groups: dict[tuple[int, int], list[tuple[ObjectMemory, Selected]]] = defaultdict(list)
        for memory in known.values():
            if frame not in memory.prompted:
                selected = memory.select(frame, reverse, self.num_frames, self.table)
                groups[len(selected.memories), len(selected.pointers)].append((memory, selected))
        if groups:
            embeddings = frames.find(frame)
            tracked = [
                (memory, output)
                for group in groups.values()
                for (memory, _), output in zip(
                    group, self._track_group(embeddings, [each for _, each in group], frames, remembers), strict=True
                )
            ]
            for memory, output in tracked:
                replaced = memory.tracked.get(frame)
                self.kept_bytes += output.nbytes - (0 if replaced is None else replaced.nbytes)
                memory.tracked[frame] = output
        for memory in known.values():
            memory.frames.add(frame, reverse)
        self.position = frame, reverse
        outputs_here = {name: memory.prompted.get(frame) or memory.tracked[frame] for name, memory in known.items()}
        rows = [Row(frame, name, replace(output)) for name, output in outputs_here.items()]  # dropping changes outputs
        objects, is_stream = self.objects.values(), self.num_frames is None
        self.kept_bytes = drop_outputs(objects, frame, self.kept_bytes, is_stream, self.limits, self.table)
        return rows

    def update_memories(self, frame: int, absent: set[int], confirmed: set[int], frames: Frames) -> None:
        """Encode the memories of a tracked frame again, after a client has compared its masks with detections.

        The area of a mask decides whether its object is visible; see Sam3VideoModel._tracker_update_memories. Objects
        with a prompt in the frame keep their memories.

        Args:
            absent: the objects to remember as invisible.
            confirmed: the objects whose output becomes that of a prompt, to which later frames attend.

        Raises:
            PromptError: no pass has visited the frame.
        """
        if all(each.frames.direction(frame) is None for each in self.objects.values()):
            raise PromptError(f"frame {frame} was not tracked: send propagate for it before update_memories")
        known = [name for name, each in self.objects.items() if each.is_tracked(frame)]
        embeddings = frames.find(frame)
        for names in self._parts(known):
            outputs = [self.objects[name].tracked[frame] for name in names]
            masks = np.stack([output.logits for output in outputs if output.logits is not None])
            masks[[name in absent for name in names]] = ABSENT
            scores = np.where((masks > 0).any(axis=(1, 2, 3)), PRESENT, ABSENT).astype(np.float32)[:, None]
            self._encode(embeddings, outputs, masks, scores, False, frames)
        for name in confirmed.intersection(known):
            with contextlib.suppress(PromptError):  # beyond a limit, the output remains that of a tracked frame
                self._check_room(name, self.objects[name], frame)
                self.objects[name].confirm(frame)

    def clear(self, frame: int, object_id: int) -> list[Row]:
        """Remove the prompts of an object in a frame; see SAM2VideoPredictor.clear_all_prompts_in_frame.

        Returns:
            One row for each object.
        """
        memory = self._known(object_id)
        memory.points.pop(frame, None)
        memory.masked.discard(frame)
        memory.new_prompted.pop(frame, None)
        memory.new_tracked.pop(frame, None)
        output = memory.prompted.pop(frame, None)
        if output is not None:
            memory.tracked[frame] = output
            memory.frames.remove(frame)
        self.count()
        return self.rows(frame)

    def remove(self, object_id: int) -> list[Row]:
        """Remove an object; see SAM2VideoPredictor.remove_object.

        Returns:
            One row for each of its prompted frames and each other object.
        """
        memory = self._known(object_id)
        del self.objects[object_id]
        self.count()
        if not self.objects:
            self.reset()
        return [row for frame in sorted({*memory.points, *memory.masked}) for row in self.rows(frame)]

    def reset(self) -> None:
        """Remove all objects; see SAM2VideoPredictor.reset_state."""
        self.objects.clear()
        self.position = None
        self.kept_bytes = 0

    def rows(self, frame: int) -> list[Row]:
        """Return the outputs of all objects in a frame; see SAM2VideoPredictor._consolidate_temp_output_across_obj."""
        is_new = any(frame in memory.new_prompted for memory in self.objects.values())
        return self._rows(frame, is_new)

    def _rows(self, frame: int, is_new: bool) -> list[Row]:
        return [Row(frame, name, memory.shown(frame, is_new)) for name, memory in self.objects.items()]

    def _known(self, object_id: int) -> ObjectMemory:
        if object_id not in self.objects:
            known = ", ".join(map(str, self.objects)) or "none"
            raise PromptError(f"there is no object {object_id}: the session has {known}")
        return self.objects[object_id]

    def _memory_for(self, object_id: int, frame: int) -> ObjectMemory:
        """Return the memory of a known or new object, if the limits allow one more prompt.

        Prompts come before confirmed frames, which are released if they take the room.
        """
        memory = self.objects.get(object_id) or ObjectMemory()
        self.limits.check_objects(len({**self.objects, object_id: memory}))
        try:
            self._check_room(object_id, memory, frame)
        except PromptError:
            self._check_room(object_id, memory, frame, with_confirmed=False)
            for each in self.objects.values():
                each.release(*each.confirmed())
        return memory

    def _check_room(self, object_id: int, memory: ObjectMemory, frame: int, with_confirmed: bool = True) -> None:
        prompts = {
            name: each.prompts().difference(() if with_confirmed else each.confirmed())
            for name, each in {**self.objects, object_id: memory}.items()
        }
        prompts[object_id].add(frame)
        self.limits.check_prompted_frames(object_id, len(prompts[object_id]))
        check_room(prompts, self.limits, self.table)

    def _keep(self, frame: int, object_id: int, memory: ObjectMemory, output: Output, is_new: bool) -> list[Row]:
        (memory.new_prompted if is_new else memory.new_tracked)[frame] = output
        self.objects[object_id] = memory
        self.count()
        return self._rows(frame, is_new)

    def _parts(self, group: Sequence[Result]) -> list[Sequence[Result]]:
        size = self._models.objects_at_a_time
        return [group[start : start + size] for start in range(0, len(group), size)]

    def _decode_prompt(self, embeddings: Embeddings, selected: Selected | None, prompt: DecoderPrompt) -> Output:
        conditioned = None if selected is None else self._models.attend(embeddings, [selected])
        decoded = self._models.decode(embeddings, conditioned, prompt)
        score, iou = float(decoded.scores[0, 0]), float(decoded.ious[0, 0])
        return Output(decoded.pointers[0].copy(), score, iou, decoded.masks[0].copy())

    def _track_group(
        self, embeddings: Embeddings, group: Sequence[Selected], frames: Frames, remembers: bool
    ) -> list[Output]:
        """Track objects that attend to equal numbers of memories, fewer of them in a call if memory is short."""
        size = min(self._models.objects_at_a_time, MAX_MEMORIES // max(1, len(group[0].memories)))
        outputs: list[Output] = []
        while len(outputs) < len(group):
            part = group[len(outputs) : len(outputs) + size]
            track = partial(self._track_part, embeddings, part, remembers)
            try:
                outputs += track() if len(part) > 1 else frames.with_room("track", track)
            except NoRoomError:
                if len(part) == 1:
                    raise
                size = (len(part) + 1) // 2
        return outputs

    def _track_part(self, embeddings: Embeddings, part: Sequence[Selected], remembers: bool) -> list[Output]:
        """Track some objects in one call of each model."""
        prompt = DecoderPrompt(np.repeat(NO_POINT, len(part), axis=0), np.repeat(NO_LABEL, len(part), axis=0), True)
        conditioned = self._models.attend(embeddings, part)
        decoded = self._models.decode(embeddings, conditioned, prompt)
        del conditioned
        outputs = [
            Output(pointer.copy(), float(score), float(iou), logits.copy())
            for pointer, score, iou, logits in zip(
                decoded.pointers, decoded.scores[:, 0], decoded.ious[:, 0], decoded.masks, strict=True
            )
        ]
        if remembers:
            memories = self._models.remember(embeddings, decoded.masks, decoded.scores, is_prompted=False)
            for output, memory in zip(outputs, memories, strict=True):
                output.memory = memory.copy()
        return outputs

    def _encode(
        self,
        embeddings: Embeddings,
        outputs: Sequence[Output],
        masks: FloatArray,
        scores: FloatArray,
        is_prompted: bool,
        frames: Frames,
    ) -> None:
        """Encode memories in one frame and store them in their outputs."""
        memories = frames.with_room("remember", lambda: self._models.remember(embeddings, masks, scores, is_prompted))
        for output, memory in zip(outputs, memories, strict=True):
            self.kept_bytes += memory.nbytes - (0 if output.memory is None else output.memory.nbytes)
            output.memory = memory.copy()
