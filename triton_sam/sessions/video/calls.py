"""The inputs and outputs of the models of a tracker by name, for every way to call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...families.base import FloatArray
from .models import Decoded, DecoderPrompt, Embeddings, Memories

Arrays = dict[str, npt.NDArray[Any]]


def attention_inputs(frame: Embeddings, memories: Memories) -> tuple[dict[str, Any], Arrays]:
    """Return the inputs of the memory attention: embeddings, and arrays."""
    name = next(iter(frame))  # the coarse embeddings come first
    return {name: frame[name]}, {
        "memories": memories.memories,
        "memory_ages": memories.ages,
        "object_pointers": memories.pointers,
        "pointer_ages": memories.pointer_ages,
    }


def decoder_inputs(frame: Embeddings, conditioned: Any | None, prompt: DecoderPrompt) -> tuple[dict[str, Any], Arrays]:
    """Return the inputs of the tracking decoder: embeddings, and arrays."""
    objects = len(prompt.coords)
    held = dict(frame)
    if conditioned is not None:
        held[next(iter(frame))] = conditioned
    arrays: Arrays = {
        "point_coords": prompt.coords,
        "point_labels": prompt.labels,
        "multimask": np.full(objects, prompt.multimask, np.float32),
        "mask_prompt": np.full(objects, prompt.mask_prompt, np.float32),
    }
    if prompt.mask is not None:
        arrays |= {"mask_input": prompt.mask, "has_mask_input": np.ones(objects, np.float32)}
    return held, arrays


def memory_inputs(
    frame: Embeddings, masks: FloatArray, scores: FloatArray, is_prompted: bool
) -> tuple[dict[str, Any], Arrays]:
    """Return the inputs of the memory encoder: embeddings, and arrays."""
    name = next(iter(frame))
    prompted = np.full(len(masks), is_prompted, np.float32)
    return {name: frame[name]}, {"masks": masks, "object_score_logits": scores, "is_prompted": prompted}


def read_decoded(answer: Mapping[str, FloatArray]) -> Decoded:
    """Return the answer of the tracking decoder."""
    return Decoded(answer["masks"], answer["iou_predictions"], answer["object_score_logits"], answer["object_pointers"])
