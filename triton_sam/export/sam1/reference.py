"""The official predictor and mask generator of SAM1 as references for `triton-sam verify`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..._common.quiet import quiet
from ...families import get_family
from ...families.base import FloatArray
from ..reference import Answer, Prompt, official_records


class Sam1Reference:
    """Reference that runs segment_anything.SamPredictor."""

    family_name: ClassVar[str] = "sam1"
    package: ClassVar[str] = "segment_anything"
    """The package with SamPredictor."""

    def __init__(self, model: Any) -> None:
        self.family = get_family(self.family_name)
        self._predictor = import_module(self.package).SamPredictor(model)

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


class Sam1EverythingReference:
    """Reference that runs segment_anything.SamAutomaticMaskGenerator."""

    package: ClassVar[str] = "segment_anything"
    """The package with SamAutomaticMaskGenerator."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def generate(self, image: npt.NDArray[np.uint8], **parameters: Any) -> list[dict[str, Any]]:
        generator = import_module(self.package).SamAutomaticMaskGenerator
        with quiet():
            return official_records(generator(self._model, **parameters), image)
