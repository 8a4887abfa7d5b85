"""The official model of EdgeTAM as a reference for `triton-sam verify`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..reference import Answer, Prompt, TransformersReference


class EdgeTamReference(TransformersReference):
    """Reference that runs transformers' EdgeTamModel with its processor."""

    def __init__(self, model: Any) -> None:
        from transformers.models.sam2.image_processing_sam2 import Sam2ImageProcessor
        from transformers.models.sam2.processing_sam2 import Sam2Processor

        super().__init__("edgetam", model, Sam2Processor(Sam2ImageProcessor()))

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        import torch

        inputs = self._inputs(prompt)
        mask = prompt.get("mask_input")
        if mask is not None:
            inputs["input_masks"] = torch.as_tensor(np.asarray(mask))[None]
        with torch.no_grad():
            if mask is not None and len(inputs) == 1:
                logits, scores = self._of_mask_alone(inputs["input_masks"], multimask)
            else:
                outputs = self._model(image_embeddings=self._embeddings, multimask_output=multimask, **inputs)
                logits, scores = outputs.pred_masks[0], outputs.iou_scores[0]
        return self._answer(logits, scores)

    def _of_mask_alone(self, mask: Any, multimask: bool) -> tuple[Any, Any]:
        """Return logits (1,M,h,w) and scores (1,M) for a mask without points.

        EdgeTamModel.forward would add two padding points. Meta's SAM2ImagePredictor and the other families add none, so
        this calls the parts of EdgeTamModel without a point.
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
