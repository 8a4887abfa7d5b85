"""The official predictors of SAM3's tracker and of its detector as references for `triton-sam verify`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..reference import Answer, FoundInstance, Prompt, TransformersReference
from .tokenizer import open_tokenizer


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


class Sam3ConceptReference:
    """Reference that runs transformers' Sam3Model with Sam3Processor.

    Args:
        checkpoint: the checkpoint, whose folder may contain a tokenizer; None for random weights.
    """

    def __init__(self, detector: Any, checkpoint: Path | None) -> None:
        from transformers.models.sam3.image_processing_sam3 import Sam3ImageProcessor
        from transformers.models.sam3.processing_sam3 import Sam3Processor

        self._model = detector
        self._processor: Any = Sam3Processor(Sam3ImageProcessor(), open_tokenizer(checkpoint))

    def set_image(self, image: Image.Image) -> None:
        import torch

        inputs = self._processor.image_processor(images=image, return_tensors="pt")
        self._sizes = inputs["original_sizes"].tolist()
        with torch.no_grad():
            self._features = self._model.get_vision_features(inputs["pixel_values"])

    def find(
        self,
        text: Sequence[str] | None,
        boxes: Sequence[Sequence[float]] | None = None,
        box_labels: Sequence[int] | None = None,
        *,
        threshold: float,
        mask_threshold: float = 0.5,
    ) -> list[FoundInstance]:
        import torch

        found: list[FoundInstance] = []
        for index, each in enumerate(text or (None,)):
            shown: dict[str, Any] = {"original_sizes": self._sizes, "return_tensors": "pt"}
            if boxes is not None:
                shown |= {"input_boxes": [list(map(list, boxes))], "input_boxes_labels": [list(box_labels or ())]}
            inputs = dict(self._processor(text=each, **shown))
            inputs.pop("original_sizes")
            with torch.no_grad():
                outputs = self._model(vision_embeds=self._features, **inputs)
            (answer,) = self._processor.image_processor.post_process_instance_segmentation(
                outputs, threshold, mask_threshold, self._sizes
            )
            order = np.argsort(-answer["scores"].numpy(), kind="stable")
            found += [
                FoundInstance(
                    index,
                    float(answer["scores"][place]),
                    tuple(answer["boxes"][place].tolist()),
                    answer["masks"][place].numpy().astype(bool),
                )
                for place in order.tolist()
            ]
        return found
