"""The official predictor of the SAM3 tracker as a reference for `triton-sam verify`."""

from __future__ import annotations

from typing import Any

from ..reference import Answer, Prompt, TransformersReference


class Sam3Reference(TransformersReference):
    """Reference that runs transformers' Sam3TrackerModel with its processor."""

    def __init__(self, model: Any) -> None:
        from transformers.models.sam3.image_processing_sam3 import Sam3ImageProcessor
        from transformers.models.sam3_tracker.processing_sam3_tracker import Sam3TrackerProcessor

        super().__init__("sam3", model, Sam3TrackerProcessor(Sam3ImageProcessor()))

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """Answer a prompt; the single mask is the best of three by score, as for the clients."""
        import torch

        inputs = self._inputs(prompt)
        with torch.no_grad():
            outputs = self._model(image_embeddings=self._embeddings, multimask_output=True, **inputs)
        logits, scores = outputs.pred_masks[0], outputs.iou_scores[0]
        if not multimask:
            rows, best = torch.arange(len(scores)), scores.argmax(dim=1)
            logits, scores = logits[rows, best].unsqueeze(1), scores[rows, best].unsqueeze(1)
        return self._answer(logits, scores)
