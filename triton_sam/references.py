"""The official predictors behind one face, as the references of `triton-sam verify`. Needs the export extra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from .families import get_family
from .families.base import Family, FloatArray

BoolArray = npt.NDArray[np.bool_]
Prompt = Mapping[str, Any]
"""Keyword arguments of predict(): point_coords, point_labels, box, mask_input."""


@dataclass(frozen=True)
class Answer:
    """What is said to one prompt: logits (P*M,h,w) and scores (P*M,), full-size masks (P*M,H,W), object by object."""

    logits: FloatArray
    scores: FloatArray
    masks: BoolArray


class Reference(Protocol):
    """An official predictor."""

    family: Family

    def set_image(self, image: Image.Image) -> None:
        """Encode an RGB image and keep it."""

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """Answer a prompt on the image: one mask an object, or three."""


class Sam1Reference:
    """segment_anything.SamPredictor.

    Args:
        model: a segment_anything.modeling.Sam.
    """

    def __init__(self, model: Any) -> None:
        from segment_anything import SamPredictor

        self.family = get_family("sam1")
        self._predictor = SamPredictor(model)

    def set_image(self, image: Image.Image) -> None:
        """See Reference.set_image."""
        self._predictor.set_image(np.asarray(image))

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """See Reference.answer. Several boxes go to predict_torch, which is what SamPredictor has for them."""
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


class Sam2Reference:
    """sam2.sam2_image_predictor.SAM2ImagePredictor.

    Args:
        model: a sam2.modeling.sam2_base.SAM2Base.
    """

    def __init__(self, model: Any) -> None:
        from sam2.sam2_image_predictor import SAM2ImagePredictor

        from .export.onnx_tools import quiet

        self.family = get_family("sam2")
        self._quiet = quiet
        with quiet():
            self._predictor = SAM2ImagePredictor(model)
        # The predictor's own sizes are those of a 1024 input.
        sizes = [(model.image_size // stride,) * 2 for stride in (4, 8, 16)]
        self._predictor._bb_feat_sizes = sizes  # noqa: SLF001

    def set_image(self, image: Image.Image) -> None:
        """See Reference.set_image."""
        with self._quiet():
            self._predictor.set_image(image)

    def answer(self, prompt: Prompt, multimask: bool) -> Answer:
        """See Reference.answer."""
        arrays = {name: np.asarray(value) for name, value in prompt.items()}
        masks, scores, logits = self._predictor.predict(**arrays, multimask_output=multimask)
        logits = logits.reshape(-1, *logits.shape[-2:])
        return Answer(logits, scores.reshape(-1), masks.reshape(-1, *masks.shape[-2:]).astype(bool))


class Sam3Reference:
    """transformers' Sam3TrackerModel with its own processor.

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
        """See Reference.answer. A single mask is the best scored of the three, as for the clients."""
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
