"""EdgeTAM: SAM2 with a small image encoder, RepViT. Reference: transformers' EdgeTamModel."""

from __future__ import annotations

from typing import ClassVar, Literal

from .sam2 import EMBEDDINGS, Sam2
from .tables import Checkpoint, ModelSize, Option
from .tracking import Tracking, sam2_tracking

MEMORY_TOKENS, MEMORY_CHANNELS = 512, 64
"""The memory of a frame: 256 tokens of the whole frame, then 256 of its 16 x 16 parts, in every image size."""


class EdgeTam(Sam2):
    """EdgeTAM has the tensors, the image frame and the decoder of SAM2. The encoder and the weights differ.

    Because the tensors are the same, config.pbtxt names the family; see config_for() in triton_sam.repository.config.
    In videos, a small network compresses the memory of each frame to tokens. transformers keeps them in float32.
    """

    name: ClassVar[str] = "edgetam"
    title: ClassVar[str] = "EdgeTAM"
    # transformers' processor resizes bytes, and its model does not limit the logits.
    resampling: ClassVar[Literal["float", "pillow", "fixed_point"]] = "fixed_point"
    logit_limit: ClassVar[float | None] = None
    tracking: ClassVar[Tracking | None] = sam2_tracking(
        EMBEDDINGS, 1024, (MEMORY_TOKENS, MEMORY_CHANNELS), bfloat16_memories=False
    )
    sizes: ClassVar[tuple[ModelSize, ...]] = (
        ModelSize("repvit_m1", config="edgetam_repvit_m1"),
        ModelSize("micro", official=False, config="edgetam_micro"),
    )
    default_size: ClassVar[str] = "repvit_m1"
    random_size: ClassVar[str] = "repvit_m1"
    quick_size: ClassVar[str] = "micro"
    built_in: ClassVar[str] = ""
    mask_generator: ClassVar[str] = ""  # transformers has none
    checkpoints: ClassVar[tuple[Checkpoint, ...]] = (
        # The official repository publishes no hash. Several public projects state this one for this commit.
        Checkpoint(
            "edgetam",
            "repvit_m1",
            "https://github.com/facebookresearch/EdgeTAM/raw/7711e012a30a2402c4eaab637bdb00a521302c91/checkpoints/edgetam.pt",
            56116523,
            "ed2d4850b8792c239689b043c47046ec239b6e808a3d9b6ae676c803fd8780df",
        ),
    )
    options: ClassVar[tuple[Option, ...]] = ()
    exporter: ClassVar[str] = "triton_sam.export.edgetam.recipe:EXPORTER"
    filled_exporter: ClassVar[str] = "triton_sam.export.edgetam.filled:EdgeTamFilled"

    @property
    def label(self) -> str:
        """See Family.label."""
        return self.title
