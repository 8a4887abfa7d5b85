"""The official predictor of the SAM3 tracker as a reference for `triton-sam verify`."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from ...families import get_family
from ..reference import Answer, Prompt


class Sam3Reference:
    """Reference that runs transformers' Sam3TrackerModel with its processor.

    Args:
        model: a transformers Sam3TrackerModel.
    """

    def __init__(self, model: Any) -> None:
        from transformers.models.sam3.image_processing_sam3 import Sam3ImageProcessor
        from transformers.models.sam3_tracker.processing_sam3_tracker import Sam3TrackerProcessor

        self.family = get_family("sam3")
        self._model = model
        self._processor: Any = Sam3TrackerProcessor(Sam3ImageProcessor())

    def set_image(self, image: Image.Image) -> None:
        """See Reference.set_image."""
        inputs = self._processor(images=image, return_tensors="pt")
        self._sizes = inputs["original_sizes"].tolist()
        self._embeddings = self._model.get_image_embeddings(inputs["pixel_values"])

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """See Reference.answer. The single mask is the one of the three with the best score, as for the clients."""
        import torch

        nested: dict[str, Any] = {"original_sizes": self._sizes, "return_tensors": "pt"}
        if "point_coords" in prompt:
            nested["input_points"] = [[np.asarray(prompt["point_coords"]).tolist()]]
            nested["input_labels"] = [[np.asarray(prompt["point_labels"]).tolist()]]
        if "box" in prompt:
            nested["input_boxes"] = [np.reshape(prompt["box"], (-1, 4)).tolist()]
        inputs = dict(self._processor(**nested))
        inputs.pop("original_sizes")
        with torch.no_grad():
            outputs = self._model(image_embeddings=self._embeddings, multimask_output=True, **inputs)
        logits, scores = outputs.pred_masks[0], outputs.iou_scores[0]
        if not multimask:
            rows, best = torch.arange(len(scores)), scores.argmax(dim=1)
            logits, scores = logits[rows, best].unsqueeze(1), scores[rows, best].unsqueeze(1)
        (masks,) = self._processor.post_process_masks([logits], self._sizes)
        return Answer(logits.flatten(0, 1).numpy(), scores.flatten().numpy(), masks.flatten(0, 1).numpy())
