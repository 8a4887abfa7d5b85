"""SAM2.1: tensors and frames of the image predictor (reference: sam2.sam2_image_predictor.SAM2ImagePredictor)."""

from __future__ import annotations

from typing import ClassVar

from .base import ModelSpec, Tensor
from .points import MASK_OUTPUTS, PROMPT_INPUTS, PointFamily

EMBEDDINGS = (
    Tensor("image_embeddings", "FP32", ("images", 256, 64, 64)),
    Tensor("high_res_feats_0", "FP32", ("images", 32, 256, 256)),
    Tensor("high_res_feats_1", "FP32", ("images", 64, 128, 128)),
)


class Sam2(PointFamily):
    """SAM2.1 in every size: 1024x1024 squashed, RGB in 0..1 (mean and std are inside the graph)."""

    name: ClassVar[str] = "sam2"
    image_size: ClassVar[int] = 1024
    mask_size: ClassVar[int] = 256
    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    keep_aspect: ClassVar[bool] = False
    logit_limit: ClassVar[float | None] = 32.0
    encoder: ClassVar[ModelSpec] = ModelSpec(
        role="encoder",
        inputs=(Tensor("image", "FP32", ("images", 3, 1024, 1024)),),
        outputs=EMBEDDINGS,
    )
    decoder: ClassVar[ModelSpec] = ModelSpec(
        role="decoder",
        inputs=(*EMBEDDINGS, *PROMPT_INPUTS),
        outputs=(*MASK_OUTPUTS, Tensor("object_score_logits", "FP32", ("prompts", 1))),
    )
