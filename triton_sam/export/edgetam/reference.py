"""The official model of EdgeTAM as a reference for `triton-sam verify`."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from ...families import get_family
from ..reference import Answer, Prompt


class EdgeTamReference:
    """Reference that runs transformers' EdgeTamModel with its processor.

    Args:
        model: a transformers EdgeTamModel.
    """

    def __init__(self, model: Any) -> None:
        from transformers.models.sam2.image_processing_sam2 import Sam2ImageProcessor
        from transformers.models.sam2.processing_sam2 import Sam2Processor

        self.family = get_family("edgetam")
        self._model = model
        self._processor: Any = Sam2Processor(Sam2ImageProcessor())

    def set_image(self, image: Image.Image) -> None:
        """See Reference.set_image."""
        inputs = self._processor(images=image, return_tensors="pt")
        self._sizes = inputs["original_sizes"].tolist()
        self._embeddings = self._model.get_image_embeddings(inputs["pixel_values"])

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """See Reference.answer."""
        import torch

        inputs = self._inputs(prompt)
        with torch.no_grad():
            if len(inputs) == 1 and "input_masks" in inputs:
                logits, scores = self._of_mask_alone(inputs["input_masks"], multimask)
            else:
                outputs = self._model(image_embeddings=self._embeddings, multimask_output=multimask, **inputs)
                logits, scores = outputs.pred_masks[0], outputs.iou_scores[0]
        (masks,) = self._processor.post_process_masks([logits], self._sizes)
        return Answer(logits.flatten(0, 1).numpy(), scores.flatten().numpy(), masks.flatten(0, 1).numpy())

    def _inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Return the arguments of EdgeTamModel.forward for a prompt."""
        import torch

        nested: dict[str, Any] = {"original_sizes": self._sizes, "return_tensors": "pt"}
        if "point_coords" in prompt:
            nested["input_points"] = [[np.asarray(prompt["point_coords"]).tolist()]]
            nested["input_labels"] = [[np.asarray(prompt["point_labels"]).tolist()]]
        if "box" in prompt:
            nested["input_boxes"] = [np.reshape(prompt["box"], (-1, 4)).tolist()]
        inputs = dict(self._processor(**nested))
        inputs.pop("original_sizes")
        if "mask_input" in prompt:
            inputs["input_masks"] = torch.as_tensor(np.asarray(prompt["mask_input"]))[None]
        return inputs

    def _of_mask_alone(self, mask: Any, multimask: bool) -> tuple[Any, Any]:
        """Return logits (1,M,h,w) and scores (1,M) for a mask without points.

        EdgeTamModel.forward would add a padding point twice. Meta's SAM2ImagePredictor adds none, and the other
        families add none, either: so this calls the parts of EdgeTamModel without a point.
        """
        fine, middle, coarse = self._embeddings
        logits, scores, *_ = self._model.mask_decoder(
            image_embeddings=coarse,
            image_positional_embeddings=self._model.get_image_wide_positional_embeddings(),
            sparse_prompt_embeddings=coarse.new_zeros(1, 1, 0, coarse.shape[1]),
            dense_prompt_embeddings=self._model.prompt_encoder.mask_embed(mask),
            multimask_output=multimask,
            high_resolution_features=[fine, middle],
        )
        return logits[0], scores[0]
