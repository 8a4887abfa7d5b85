"""The official detector of SAM3 as a reference for `triton-sam verify sam3-concepts`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..reference import FoundInstance
from .tokenizer import open_tokenizer


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
