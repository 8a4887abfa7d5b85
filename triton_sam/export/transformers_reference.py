"""The common part of transformers' models with points and boxes as references for `triton-sam verify`."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from ..families import get_family
from .reference import Answer, Prompt


class TransformersReference:
    """Runs a transformers model with its processor; subclasses answer the prompts."""

    def __init__(self, family: str, model: Any, processor: Any) -> None:
        self.family = get_family(family)
        self._model = model
        self._processor = processor

    def set_image(self, image: Image.Image) -> None:
        inputs = self._processor(images=image, return_tensors="pt")
        self._sizes = inputs["original_sizes"].tolist()
        self._embeddings = self._model.get_image_embeddings(inputs["pixel_values"])

    def _inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Return the model's arguments for the points and boxes of a prompt."""
        nested: dict[str, Any] = {"original_sizes": self._sizes, "return_tensors": "pt"}
        if "point_coords" in prompt:
            nested["input_points"] = [[np.asarray(prompt["point_coords"]).tolist()]]
            nested["input_labels"] = [[np.asarray(prompt["point_labels"]).tolist()]]
        if "box" in prompt:
            nested["input_boxes"] = [np.reshape(prompt["box"], (-1, 4)).tolist()]
        inputs = dict(self._processor(**nested))
        inputs.pop("original_sizes")
        return inputs

    def _answer(self, logits: Any, scores: Any) -> Answer:
        """Return the answer from logits (N,M,h,w) and scores (N,M) of N prompts with M masks each."""
        (masks,) = self._processor.post_process_masks([logits], self._sizes)
        return Answer(logits.flatten(0, 1).numpy(), scores.flatten().numpy(), masks.flatten(0, 1).numpy())
