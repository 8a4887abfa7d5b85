"""The interface that the official predictors have for `triton-sam verify`. They need the export extra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..families.base import Family, FloatArray

BoolArray = npt.NDArray[np.bool_]
Prompt = Mapping[str, Any]
"""Keyword arguments of predict(): any of point_coords, point_labels, box and mask_input."""


@dataclass(frozen=True)
class Answer:
    """The answer of a predictor to a prompt with P objects and M masks for each; the masks of an object are adjacent.

    Args:
        logits: (P*M,h,w) low-resolution mask logits.
        scores: (P*M,) predicted IoU of each mask.
        masks: (P*M,H,W) masks in the size of the image.
    """

    logits: FloatArray
    scores: FloatArray
    masks: BoolArray


class Reference(Protocol):
    """An official predictor, such as SAM2ImagePredictor, with the model that it runs."""

    family: Family

    def set_image(self, image: Image.Image) -> None:
        """Encode an RGB image; answer() then refers to this image."""

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """Answer a prompt: one mask for each object, or three with ``multimask``."""
