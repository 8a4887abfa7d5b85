"""The prompts and outputs that SAM1 and SAM2 share.

A box is two points, a mask is an optional prompt, and the single mask and the multimasks are separate outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from .base import LABEL_BOX_BOTTOM_RIGHT, LABEL_BOX_TOP_LEFT, FloatArray
from .tables import MAX_PROMPT_POINTS, MAX_PROMPTS, Dimension, Tensor

PROMPT_INPUTS = (
    Tensor("point_coords", "FP32", ("prompts", "points", 2)),
    Tensor("point_labels", "FP32", ("prompts", "points")),
    # "masks" must differ from "prompts": if they shared a symbol, ONNX Runtime would reject P > 1 whenever a request
    # leaves the mask out, since the default mask has a batch of 1.
    Tensor("mask_input", "FP32", ("masks", 1, 256, 256), optional=True),
    Tensor("has_mask_input", "FP32", ("masks",), optional=True),
)
DECODER_DIMENSIONS = MappingProxyType(
    {
        # Embeddings and masks: one for all prompts, or one for each prompt.
        "images": Dimension(choices=(1, "prompts")),
        "masks": Dimension(choices=(1, "prompts")),
        "points": Dimension(minimum=0),  # a mask without points is a valid prompt
    }
)
"""The sizes that the decoder's inputs may have."""
DECODER_LIMITS = MappingProxyType({("prompts",): MAX_PROMPTS, ("prompts", "points"): MAX_PROMPT_POINTS})
"""The limits of one request to the decoder."""
MASK_OUTPUTS = (
    Tensor("masks", "FP32", ("prompts", 1, 256, 256)),
    Tensor("iou_predictions", "FP32", ("prompts", 1)),
    Tensor("multimask_masks", "FP32", ("prompts", 3, 256, 256)),
    Tensor("multimask_iou_predictions", "FP32", ("prompts", 3)),
)


def decoder_inputs(
    coords: FloatArray,
    labels: npt.NDArray[np.int64],
    boxes: FloatArray | None,
    mask: FloatArray | None,
) -> dict[str, npt.NDArray[np.generic]]:
    """Turn prompts into tensors. A box becomes two points with the labels 2 and 3, before the other points."""
    if boxes is not None:
        corners = boxes.reshape(-1, 2, 2)
        corner_labels = np.tile([LABEL_BOX_TOP_LEFT, LABEL_BOX_BOTTOM_RIGHT], (len(boxes), 1))
        coords = np.concatenate([corners, coords], axis=1)
        labels = np.concatenate([corner_labels, labels], axis=1)
    tensors: dict[str, npt.NDArray[np.generic]] = {
        "point_coords": np.ascontiguousarray(coords, np.float32),
        "point_labels": np.ascontiguousarray(labels, np.float32),
    }
    if mask is not None:
        tensors["mask_input"] = np.ascontiguousarray(mask, np.float32)
        tensors["has_mask_input"] = np.ones(len(mask), np.float32)
    return tensors


def requested_outputs(multimask_output: bool) -> Sequence[str]:
    """Return the names of the masks and of their scores."""
    if multimask_output:
        return ("multimask_masks", "multimask_iou_predictions")
    return ("masks", "iou_predictions")


def read_masks(outputs: Mapping[str, FloatArray], multimask_output: bool) -> tuple[FloatArray, FloatArray]:
    """Return the single mask of each prompt, or its candidates."""
    masks, scores = requested_outputs(multimask_output)
    return outputs[masks], outputs[scores]
