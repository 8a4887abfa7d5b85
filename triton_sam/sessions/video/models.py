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
        ages: int64 (objects,memories): steps between the frame of each memory and the frame that is tracked, 1 to 6; 0
            for a prompted frame.
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
        mask_prompt: 0: ``mask`` holds earlier logits. 1: it is the output of the mask_prompt model. -1:
            the same, and the mask is empty.
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
        """Run the tracking decoder."""

    def remember(self, frame: Embeddings, masks: FloatArray, scores: FloatArray, is_prompted: bool) -> FloatArray:
        """Run the memory encoder: return the memories (objects,*Tracking.memory_shape)."""

    def prompt_mask(self, mask: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Run the mask_prompt model on (objects,1,S,S): return the decoder's mask input and logits (objects,1,s,s)."""


class NamedModels(ABC):
    """TrackingModels for every way to call models by the names of their inputs and outputs."""

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
        """Run a model."""

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
