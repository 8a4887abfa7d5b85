"""SAM1: tensors and frames of the image predictor (reference: segment_anything.SamPredictor)."""

from __future__ import annotations

from typing import ClassVar, Literal

from .base import ModelSpec, Tensor
from .points import MASK_OUTPUTS, PROMPT_INPUTS, PointFamily

PIXEL_MEAN = (123.675 / 255, 116.28 / 255, 103.53 / 255)
"""Mean of RGB in 0..1; segment_anything.build_sam."""
PIXEL_STD = (58.395 / 255, 57.12 / 255, 57.375 / 255)
"""Standard deviation of RGB in 0..1; segment_anything.build_sam."""

EMBEDDINGS = (Tensor("image_embeddings", "FP32", ("images", 256, 64, 64)),)


class Sam1(PointFamily):
    """SAM1 in every size: longest side 1024, RGB in 0..1 (mean and std are inside the graph).

    The room at the right or at the bottom holds the mean colour, so that it is zero behind the normalisation, where
    the official code pads.
    """

    name: ClassVar[str] = "sam1"
    image_size: ClassVar[int] = 1024
    mask_size: ClassVar[int] = 256
    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    keep_aspect: ClassVar[bool] = True
    pad_color: ClassVar[tuple[float, float, float]] = PIXEL_MEAN
    resampling: ClassVar[Literal["float", "pillow", "fixed_point"]] = "pillow"
    encoder: ClassVar[ModelSpec] = ModelSpec(
        role="encoder",
        inputs=(Tensor("image", "FP32", ("images", 3, 1024, 1024)),),
        outputs=EMBEDDINGS,
    )
    decoder: ClassVar[ModelSpec] = ModelSpec(
        role="decoder",
        inputs=(*EMBEDDINGS, *PROMPT_INPUTS),
        outputs=MASK_OUTPUTS,
    )
