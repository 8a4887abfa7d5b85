"""The official predictors behind one face, as the references of `triton-sam verify`. Needs the export extra."""

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
"""Keyword arguments of predict(): point_coords, point_labels, box, mask_input."""


@dataclass(frozen=True)
class Answer:
    """What is said to one prompt: logits (P*M,h,w) and scores (P*M,), full-size masks (P*M,H,W), object by object."""

    logits: FloatArray
    scores: FloatArray
    masks: BoolArray


class Reference(Protocol):
    """An official predictor."""

    family: Family

    def set_image(self, image: Image.Image) -> None:
        """Encode an RGB image and keep it."""

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """Answer a prompt on the image: one mask an object, or three."""
