"""The interface between a tracker and the models that it calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import ConfigurationError
from ...families.base import Family, FloatArray
from ...families.tables import ENCODER
from ...families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER

Embeddings = Mapping[str, Any]
"""The encoder's outputs for one frame by name, in whatever form the models accept, for example tensors of Triton."""


@dataclass(frozen=True, eq=False)
class Memories:
    """The memories of objects, for one call.

    Args:
        memories: float32 (objects,memories,*shape), where ``shape`` is Tracking.memory_shape.
        ages: int64 (objects,memories): steps between the frame of each memory and the frame that is tracked, 1 to 6; 0
            for a prompted frame.
        pointers: float32 (objects,pointers,D).
        pointer_ages: float32 (objects,pointers), see families.tracking.
    """

    memories: FloatArray
    ages: npt.NDArray[np.int64]
    pointers: FloatArray
    pointer_ages: FloatArray


@dataclass(frozen=True, eq=False)
class DecoderPrompt:
    """The prompts of objects, for one call of the tracking decoder.

    Args:
        coords: float32 (objects,points,2) in pixels of the encoder's image.
        labels: float32 (objects,points).
        multimask: whether the best of three masks is wanted.
        mask_prompt: 0: ``mask`` holds earlier logits. 1: it is the output of the mask_prompt model. -1:
            the same, and the mask is empty.
        mask: float32 (objects,1,s,s), or None.
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
        masks: float32 (objects,1,s,s) logits.
        ious: float32 (objects,1) predicted IoUs.
        scores: float32 (objects,1) logits, above 0 if the object is visible.
        pointers: float32 (objects,D).
    """

    masks: FloatArray
    ious: FloatArray
    scores: FloatArray
    pointers: FloatArray


class TrackingModels(Protocol):
    """Calls the models of a tracker. Every call may raise NoRoomError."""

    @property
    def objects_at_a_time(self) -> int:
        """Maximum number of objects in one call."""

    def encode(self, inputs: Mapping[str, FloatArray]) -> Embeddings:
        """Encode one frame."""

    def nbytes(self, embeddings: Embeddings) -> int:
        """Return the size of embeddings in bytes."""

    def attend(self, frame: Embeddings, memories: Memories) -> Any:
        """Run the memory attention: return the conditioned embeddings of the objects, for decode()."""

    def decode(self, frame: Embeddings, conditioned: Any | None, prompt: DecoderPrompt) -> Decoded:
        """Run the tracking decoder.

        Args:
            frame: embeddings of the frame.
            conditioned: from attend(); None for a frame without memory.
            prompt: prompts of the objects.
        """

    def remember(self, frame: Embeddings, masks: FloatArray, scores: FloatArray, is_prompted: bool) -> FloatArray:
        """Run the memory encoder: return the memories (objects,*Tracking.memory_shape).

        Args:
            frame: embeddings of the frame.
            masks: (objects,1,s,s) logits.
            scores: (objects,1) logits.
            is_prompted: whether the masks answer prompts.
        """

    def prompt_mask(self, mask: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Run the mask_prompt model on (objects,1,S,S): return the decoder's mask input and logits (objects,1,s,s)."""


class NamedModels(ABC):
    """TrackingModels for every way to call models by the names of their inputs and outputs.

    Args:
        family: the family at the size of its encoder's image.
        objects_at_a_time: maximum number of objects in one call.

    Raises:
        ConfigurationError: the family has no models for videos.
    """

    def __init__(self, family: Family, objects_at_a_time: int) -> None:
        if family.tracking is None:
            raise ConfigurationError(f"{family.name} has no models for videos")
        self.objects_at_a_time = objects_at_a_time
        self._outputs = {role: spec.output_names for role, spec in family.tracking.models.items()}
        self._outputs[ENCODER] = family.encoder.output_names
        self._coarse = self._outputs[ENCODER][0]

    @abstractmethod
    def run(
        self, role: str, held: Embeddings, arrays: Mapping[str, npt.NDArray[Any]], *, is_held: bool = False
    ) -> Mapping[str, Any]:
        """Run a model.

        Args:
            role: its role in the family.
            held: inputs that are embeddings.
            arrays: the other inputs.
            is_held: whether the outputs are embeddings, for other models; else they are arrays.
        """

    @abstractmethod
    def nbytes(self, embeddings: Embeddings) -> int:
        """Return the size of embeddings in bytes."""

    def encode(self, inputs: Mapping[str, FloatArray]) -> Embeddings:
        """See TrackingModels."""
        return self.run(ENCODER, {}, inputs, is_held=True)

    def attend(self, frame: Embeddings, memories: Memories) -> Any:
        """See TrackingModels."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "memories": memories.memories,
            "memory_ages": memories.ages,
            "object_pointers": memories.pointers,
            "pointer_ages": memories.pointer_ages,
        }
        (conditioned,) = self.run(MEMORY_ATTENTION, {self._coarse: frame[self._coarse]}, arrays, is_held=True).values()
        return conditioned

    def decode(self, frame: Embeddings, conditioned: Any | None, prompt: DecoderPrompt) -> Decoded:
        """See TrackingModels."""
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
        answer = self.run(TRACKING_DECODER, held, arrays)
        return Decoded(
            answer["masks"], answer["iou_predictions"], answer["object_score_logits"], answer["object_pointers"]
        )

    def remember(self, frame: Embeddings, masks: FloatArray, scores: FloatArray, is_prompted: bool) -> FloatArray:
        """See TrackingModels."""
        prompted = np.full(len(masks), is_prompted, np.float32)
        arrays: dict[str, npt.NDArray[Any]] = {"masks": masks, "object_score_logits": scores, "is_prompted": prompted}
        memory: FloatArray
        (memory,) = self.run(MEMORY_ENCODER, {self._coarse: frame[self._coarse]}, arrays).values()
        return memory

    def prompt_mask(self, mask: FloatArray) -> tuple[FloatArray, FloatArray]:
        """See TrackingModels."""
        answer = self.run(MASK_PROMPT, {}, {"mask": mask})
        return answer["mask_input"], answer["masks"]
