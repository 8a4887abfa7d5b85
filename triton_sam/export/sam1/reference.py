"""The official predictor of SAM1 as a reference for `triton-sam verify`."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from ...families.base import Family, FloatArray
from ..reference import Answer, Prompt


class Sam1Reference:
    """Runs a SamPredictor: of segment_anything, or of another package with its interface."""

    def __init__(self, family: Family, predictor: Any) -> None:
        self.family = family
        self._predictor = predictor

    def set_image(self, image: Image.Image) -> None:
        self._predictor.set_image(np.asarray(image))

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """Answer a prompt; several boxes go to predict_torch, because SamPredictor.predict takes only one box."""
        arrays = {name: np.asarray(value) for name, value in prompt.items()}
        if "box" in arrays and arrays["box"].ndim == 2:
            return self._answer_boxes(arrays["box"], multimask)
        masks, scores, logits = self._predictor.predict(**arrays, multimask_output=multimask)
        return Answer(logits, scores, masks)

    def _answer_boxes(self, boxes: FloatArray, multimask: bool) -> Answer:
        import torch

        predictor = self._predictor
        frame = predictor.transform.apply_boxes_torch(torch.from_numpy(boxes), predictor.original_size)
        masks, scores, logits = predictor.predict_torch(None, None, frame, multimask_output=multimask)
        return Answer(logits.flatten(0, 1).numpy(), scores.flatten().numpy(), masks.flatten(0, 1).numpy())
