"""SAM1: the tensors and the image frame of its predictor. Reference: segment_anything.SamPredictor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from .points import DECODER_DIMENSIONS, MASK_OUTPUTS, PROMPT_INPUTS, PointFamily
from .tables import DECODER, ENCODER, Checkpoint, ModelSize, ModelSpec, Option, Tensor, by_role

PIXEL_MEAN = (123.675 / 255, 116.28 / 255, 103.53 / 255)
"""Mean of RGB values in 0..1, from segment_anything.build_sam."""
PIXEL_STD = (58.395 / 255, 57.12 / 255, 57.375 / 255)
"""Standard deviation of RGB values in 0..1, from segment_anything.build_sam."""

_FILES = "https://dl.fbaipublicfiles.com/segment_anything"

EMBEDDINGS = (Tensor("image_embeddings", "FP32", ("images", 256, 64, 64)),)


class Sam1(PointFamily):
    """SAM1 in every size. The encoder takes RGB in 0..1; the longest side of the image is scaled to 1024 pixels.

    The graph subtracts the mean and divides by the standard deviation. The padding at the right or at the bottom has
    the mean colour, so that it becomes zero there: the official code pads with zeros after the normalisation.
    """

    name: ClassVar[str] = "sam1"
    title: ClassVar[str] = "SAM1"
    image_size: ClassVar[int] = 1024
    mask_size: ClassVar[int] = 256
    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    keep_aspect: ClassVar[bool] = True
    pad_color: ClassVar[tuple[float, float, float]] = PIXEL_MEAN
    pixel_mean: ClassVar[tuple[float, float, float]] = PIXEL_MEAN
    pixel_std: ClassVar[tuple[float, float, float]] = PIXEL_STD
    resampling: ClassVar[Literal["float", "pillow", "fixed_point"]] = "pillow"
    models: ClassVar[Mapping[str, ModelSpec]] = by_role(
        ModelSpec(
            role=ENCODER,
            inputs=(Tensor("image", "FP32", ("images", 3, 1024, 1024)),),
            outputs=EMBEDDINGS,
        ),
        ModelSpec(
            role=DECODER,
            inputs=(*EMBEDDINGS, *PROMPT_INPUTS),
            outputs=MASK_OUTPUTS,
            dimensions=DECODER_DIMENSIONS,
        ),
    )
    sizes: ClassVar[tuple[ModelSize, ...]] = (
        ModelSize("vit_b", config="sam1_vit_b"),
        ModelSize("vit_l", config="sam1_vit_l"),
        ModelSize("vit_h", config="sam1_vit_h"),
        ModelSize("micro", official=False, config="sam1_micro"),
    )
    default_size: ClassVar[str] = "vit_b"
    random_size: ClassVar[str] = "vit_b"
    quick_size: ClassVar[str] = "micro"
    checkpoints: ClassVar[tuple[Checkpoint, ...]] = (
        Checkpoint(
            "sam1",
            "vit_b",
            f"{_FILES}/sam_vit_b_01ec64.pth",
            375042383,
            "ec2df62732614e57411cdcf32a23ffdf28910380d03139ee0f4fcbe91eb8c912",
        ),
        Checkpoint(
            "sam1",
            "vit_l",
            f"{_FILES}/sam_vit_l_0b3195.pth",
            1249524607,
            "3adcc4315b642a4d2101128f611684e8734c41232a17c648ed1693702a49a622",
        ),
        Checkpoint(
            "sam1",
            "vit_h",
            f"{_FILES}/sam_vit_h_4b8939.pth",
            2564550879,
            "a7bf3b02f3ebf1267aba913ff637d9a2d5c33d3173bb679e46d9f338c26f262e",
        ),
    )
    options: ClassVar[tuple[Option, ...]] = (
        Option("--model-type", "the same as --size", choices=("vit_b", "vit_l", "vit_h"), names_model=True),
        Option("--model-cfg", "the same as --size", commands=("verify",), metavar="NAME_OR_FILE", names_model=True),
    )
    exporter: ClassVar[str] = "triton_sam.export.sam1.recipe:EXPORTER"
    mask_generator: ClassVar[str] = "sam1"
    pred_iou_thresh: ClassVar[float] = 0.88
    encode_speedup: ClassVar[float] = 3.0
