"""The interface between a tracker and the models that it calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...families.base import FloatArray

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
