"""The models that a tracker calls, with their inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ConfigurationError
from ...families.base import Family, FloatArray
from ...families.tables import ENCODER, MAX_PROMPTS
from ...families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from ..images import Run
from .memory import Selected, StoredMemory

Embeddings = Mapping[str, Any]
"""The encoder's outputs for one frame by name, in a form that the models accept, for example Triton tensors."""


@dataclass(frozen=True, eq=False)
class DecoderPrompt:
    """The prompts of objects, for one call of the tracking decoder.

    Args:
        coords: float32 (objects,points,2) in pixels of the encoder's image.
        mask_prompt: 0: ``mask`` contains earlier logits. 1: it is the output of the mask_prompt model. -1: the same,
            and the mask is empty.
    """

    coords: FloatArray
    labels: FloatArray
    multimask: bool
    mask_prompt: int = 0
    mask: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Decoded:
    """The answer of the tracking decoder for objects.

    Args:
        scores: float32 (objects,1) logits, above 0 if the object is visible.
    """

    masks: FloatArray
    ious: FloatArray
    scores: FloatArray
    pointers: FloatArray


class TrackingModels:
    """Calls the models of a tracker. Every call may raise NoRoomError.

    Args:
        objects_at_a_time: maximum number of objects in one call, at most MAX_PROMPTS.

    Raises:
        ConfigurationError: the family has no models for videos.
    """

    def __init__(self, family: Family, run: Run, objects_at_a_time: int) -> None:
        if family.tracking is None:
            raise ConfigurationError(f"{family.name} has no models for videos")
        self.objects_at_a_time = min(objects_at_a_time, MAX_PROMPTS)
        self.run = run
        self._table = family.tracking
        self._outputs = {role: spec.output_names for role, spec in family.tracking.models.items()}
        self._outputs[ENCODER] = family.encoder.output_names
        self._image = family.encoder.input_names[0]
        self._coarse = family.tracking.models[MEMORY_ENCODER].input_names[0]

    def encode(self, pixels: FloatArray) -> Embeddings:
        """Encode one frame, the output of inputs.images.frame_input."""
        return self.run(ENCODER, {}, {self._image: pixels}, self._outputs[ENCODER], True)

    def attend(self, frame: Embeddings, part: Sequence[Selected]) -> Any:
        """Run the memory attention: return the conditioned embeddings of the objects, for decode().

        ``memory_ages`` int64 (objects,memories) are the steps between the frame of each memory and the tracked frame, 1
        to 6; 0 for a prompted frame.
        """
        table, count, pointers = self._table, len(part[0].memories), len(part[0].pointers)
        dtype = np.dtype(np.uint32 if table.bfloat16_memories else np.float32)
        memories = np.empty((len(part), count, *table.memory_shape), dtype)
        ages = np.empty((len(part), count), np.int64)
        vectors = np.empty((len(part), pointers, table.pointer_channels), np.float32)
        vector_ages = np.empty((len(part), pointers), np.float32)
        for row, selected in enumerate(part):
            for column, (age, memory) in enumerate(selected.memories):
                memories[row, column], ages[row, column] = memory, age
            for column, (relative_age, pointer) in enumerate(selected.pointers):
                vectors[row, column], vector_ages[row, column] = pointer, relative_age
        if table.bfloat16_memories:  # they are the upper half of a float32
            np.left_shift(memories, 16, out=memories)
        arrays: dict[str, npt.NDArray[Any]] = {
            "memories": memories.view(np.float32),
            "memory_ages": ages,
            "object_pointers": vectors,
            "pointer_ages": vector_ages,
        }
        held, outputs = {self._coarse: frame[self._coarse]}, self._outputs[MEMORY_ATTENTION]
        (conditioned,) = self.run(MEMORY_ATTENTION, held, arrays, outputs, True).values()
        return conditioned

    def decode(self, frame: Embeddings, conditioned: Any | None, prompt: DecoderPrompt) -> Decoded:
        objects = len(prompt.coords)
        arrays: dict[str, npt.NDArray[Any]] = {
            "point_coords": prompt.coords,
            "point_labels": prompt.labels,
            "multimask": np.full(objects, prompt.multimask, np.float32),
            "mask_prompt": np.full(objects, prompt.mask_prompt, np.float32),
        }
        if prompt.mask is not None:
            arrays |= {"mask_input": prompt.mask, "has_mask_input": np.ones(objects, np.float32)}
        held = frame if conditioned is None else {**frame, self._coarse: conditioned}
        answer = self.run(TRACKING_DECODER, held, arrays, self._outputs[TRACKING_DECODER], False)
        return Decoded(
            answer["masks"], answer["iou_predictions"], answer["object_score_logits"], answer["object_pointers"]
        )

    def remember(self, frame: Embeddings, masks: FloatArray, scores: FloatArray, is_prompted: bool) -> StoredMemory:
        """Run the memory encoder: return the memories (objects,*Tracking.memory_shape) in the dtype of memory_dtype().

        The bits of bfloat16 are rounded to the nearest, ties to even; NaN stays NaN.
        """
        prompted = np.full(len(masks), is_prompted, np.float32)
        arrays: dict[str, npt.NDArray[Any]] = {"masks": masks, "object_score_logits": scores, "is_prompted": prompted}
        memory: FloatArray
        held, outputs = {self._coarse: frame[self._coarse]}, self._outputs[MEMORY_ENCODER]
        (memory,) = self.run(MEMORY_ENCODER, held, arrays, outputs, False).values()
        if not self._table.bfloat16_memories:
            return memory
        bits = np.ascontiguousarray(memory, np.float32).view(np.uint32)
        rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
        is_nan = np.isnan(memory)
        return np.where(is_nan, np.uint16(0x7FC0), rounded) if is_nan.any() else rounded

    def prompt_mask(self, mask: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Run the mask_prompt model on (objects,1,S,S): return the decoder's mask input and logits (objects,1,s,s)."""
        answer = self.run(MASK_PROMPT, {}, {"mask": mask}, self._outputs[MASK_PROMPT], False)
        return answer["mask_input"], answer["masks"]
