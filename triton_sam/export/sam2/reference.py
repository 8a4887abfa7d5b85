"""The official predictor and mask generator of SAM2 as references for `triton-sam verify`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..._common.quiet import quiet
from ...families import get_family
from ..reference import Answer, Prompt, official_records


class Sam2Reference:
    """Reference that runs sam2.sam2_image_predictor.SAM2ImagePredictor."""

    def __init__(self, model: Any) -> None:
        from sam2.sam2_image_predictor import SAM2ImagePredictor

        self.family = get_family("sam2")
        with quiet():
            self._predictor = SAM2ImagePredictor(model)
        # By default, the predictor assumes the feature sizes of an image size of 1024 pixels.
        sizes = [(model.image_size // stride,) * 2 for stride in (4, 8, 16)]
        self._predictor._bb_feat_sizes = sizes  # noqa: SLF001

    def set_image(self, image: Image.Image) -> None:
        with quiet():
            self._predictor.set_image(image)

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        arrays = {name: np.asarray(value) for name, value in prompt.items()}
        masks, scores, logits = self._predictor.predict(**arrays, multimask_output=multimask)
        logits = logits.reshape(-1, *logits.shape[-2:])
        return Answer(logits, scores.reshape(-1), masks.reshape(-1, *masks.shape[-2:]).astype(bool))


class Sam2EverythingReference:
    """Reference that runs sam2.automatic_mask_generator.SAM2AutomaticMaskGenerator."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def generate(self, image: npt.NDArray[np.uint8], **parameters: Any) -> list[dict[str, Any]]:
        from sam2.automatic_mask_generator import SAM2AutomaticMaskGenerator

        with quiet():
            generator = SAM2AutomaticMaskGenerator(self._model, **parameters)
            # By default, its predictor assumes the feature sizes of an image size of 1024 pixels.
            sizes = [(self._model.image_size // stride,) * 2 for stride in (4, 8, 16)]
            generator.predictor._bb_feat_sizes = sizes  # noqa: SLF001
            return official_records(generator, image)
