"""SAM2.1: the tensors and the image frame of its predictor. Reference: sam2.sam2_image_predictor.SAM2ImagePredictor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from .points import DECODER_DIMENSIONS, MASK_OUTPUTS, PROMPT_INPUTS, PointFamily
from .tables import DECODER, ENCODER, Checkpoint, ModelSize, ModelSpec, Option, Tensor, by_role
from .tracking import Tracking, sam2_tracking

_FILES = "https://dl.fbaipublicfiles.com/segment_anything_2/092824"
_CONFIG = "configs/sam2.1/sam2.1_hiera"

EMBEDDINGS = (
    Tensor("image_embeddings", "FP32", ("images", 256, 64, 64)),
    Tensor("high_res_feats_0", "FP32", ("images", 32, 256, 256)),
    Tensor("high_res_feats_1", "FP32", ("images", 64, 128, 128)),
)
TRACKING = sam2_tracking(EMBEDDINGS, 1024)


class Sam2(PointFamily):
    """SAM2.1 in every size. The encoder takes RGB in 0..1; the image is stretched or squashed to 1024x1024 pixels.

    The graph subtracts the mean and divides by the standard deviation.
    """

    name: ClassVar[str] = "sam2"
    title: ClassVar[str] = "SAM2.1"
    image_size: ClassVar[int] = 1024
    mask_size: ClassVar[int] = 256
    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    keep_aspect: ClassVar[bool] = False
    logit_limit: ClassVar[float | None] = 32.0
    models: ClassVar[Mapping[str, ModelSpec]] = by_role(
        ModelSpec(
            role=ENCODER,
            inputs=(Tensor("image", "FP32", ("images", 3, 1024, 1024)),),
            outputs=EMBEDDINGS,
        ),
        ModelSpec(
            role=DECODER,
            inputs=(*EMBEDDINGS, *PROMPT_INPUTS),
            outputs=(*MASK_OUTPUTS, Tensor("object_score_logits", "FP32", ("prompts", 1))),
            dimensions=DECODER_DIMENSIONS,
        ),
    )
    tracking: ClassVar[Tracking | None] = TRACKING
    sizes: ClassVar[tuple[ModelSize, ...]] = (
        ModelSize("tiny", model=f"{_CONFIG}_t.yaml", aliases=("t",)),
        ModelSize("small", model=f"{_CONFIG}_s.yaml", aliases=("s",)),
        ModelSize("base_plus", model=f"{_CONFIG}_b+.yaml", aliases=("b+",)),
        ModelSize("large", model=f"{_CONFIG}_l.yaml", aliases=("l",)),
        ModelSize("micro", official=False, model="sam2.1_hiera_micro.yaml"),
    )
    default_size: ClassVar[str] = "base_plus"
    random_size: ClassVar[str] = "tiny"
    quick_size: ClassVar[str] = "micro"
    built_in: ClassVar[str] = "sam2.1_hiera_micro"
    mask_generator: ClassVar[str] = "sam2"
    checkpoints: ClassVar[tuple[Checkpoint, ...]] = (
        Checkpoint(
            "sam2",
            "tiny",
            f"{_FILES}/sam2.1_hiera_tiny.pt",
            156008466,
            "7402e0d864fa82708a20fbd15bc84245c2f26dff0eb43a4b5b93452deb34be69",
        ),
        Checkpoint(
            "sam2",
            "small",
            f"{_FILES}/sam2.1_hiera_small.pt",
            184416285,
            "6d1aa6f30de5c92224f8172114de081d104bbd23dd9dc5c58996f0cad5dc4d38",
        ),
        Checkpoint(
            "sam2",
            "base_plus",
            f"{_FILES}/sam2.1_hiera_base_plus.pt",
            323606802,
            "a2345aede8715ab1d5d31b4a509fb160c5a4af1970f199d9054ccfb746c004c5",
        ),
        Checkpoint(
            "sam2",
            "large",
            f"{_FILES}/sam2.1_hiera_large.pt",
            898083611,
            "2647878d5dfa5098f2f8649825738a9345572bae2d4350a2468587ece47dd318",
        ),
    )
    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "--model-cfg",
            "model configuration, in place of --size: a file, or a name inside the sam2 package, for example "
            "configs/sam2.1/sam2.1_hiera_b+.yaml (default: chosen by the file name of the checkpoint)",
            commands=("export", "verify"),
            metavar="NAME_OR_FILE",
            names_model=True,
        ),
        Option(
            "--standard-operators",
            "use only operators of the ONNX standard, for TensorRT and other runtimes; ONNX Runtime then encodes more "
            "slowly",
            commands=("export", "setup"),
            is_switch=True,
        ),
    )
    exporter: ClassVar[str] = "triton_sam.export.sam2.recipe:EXPORTER"
