"""The official predictor and mask generator of SAM2 as references for `triton-sam verify`."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from ..._common.progress import quiet
from ...families import get_family
from ..reference import Answer, Prompt


class Sam2Reference:
    """Reference that runs sam2.sam2_image_predictor.SAM2ImagePredictor."""

    def __init__(self, model: Any) -> None:
        from sam2.sam2_image_predictor import SAM2ImagePredictor

        self.family = get_family("sam2")
        with quiet():
            self._predictor = SAM2ImagePredictor(model)
        _set_feature_sizes(self._predictor, model)

    def set_image(self, image: Image.Image) -> None:
        with quiet():
            self._predictor.set_image(image)

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        arrays = {name: np.asarray(value) for name, value in prompt.items()}
        masks, scores, logits = self._predictor.predict(**arrays, multimask_output=multimask)
        logits = logits.reshape(-1, *logits.shape[-2:])
        return Answer(logits, scores.reshape(-1), masks.reshape(-1, *masks.shape[-2:]).astype(bool))


def mask_generator(model: Any, **parameters: Any) -> Any:
    """Return a sam2.automatic_mask_generator.SAM2AutomaticMaskGenerator."""
    from sam2.automatic_mask_generator import SAM2AutomaticMaskGenerator

    generator = SAM2AutomaticMaskGenerator(model, **parameters)
    _set_feature_sizes(generator.predictor, model)
    return generator


def _set_feature_sizes(predictor: Any, model: Any) -> None:
    """Set the sizes of the feature maps; by default, they are those of an image size of 1024 pixels."""
    predictor._bb_feat_sizes = [(model.image_size // stride,) * 2 for stride in (4, 8, 16)]  # noqa: SLF001
