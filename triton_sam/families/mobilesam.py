"""MobileSAM: SAM1 with a small image encoder, TinyViT. Reference: mobile_sam.SamPredictor."""

from __future__ import annotations

from typing import ClassVar

from .sam1 import Sam1
from .tables import Checkpoint, ModelSize, Option


class MobileSam(Sam1):
    """MobileSAM has the tensors, the image frame and the decoder of SAM1. Only the encoder and the weights differ.

    Because the tensors are the same, config.pbtxt names the family; see config_for() in triton_sam.repository.config.
    """

    name: ClassVar[str] = "mobilesam"
    title: ClassVar[str] = "MobileSAM"
    sizes: ClassVar[tuple[ModelSize, ...]] = (
        ModelSize("vit_t", config="mobilesam_vit_t"),
        ModelSize("micro", official=False, config="mobilesam_micro"),
    )
    default_size: ClassVar[str] = "vit_t"
    random_size: ClassVar[str] = "vit_t"
    quick_size: ClassVar[str] = "micro"
    checkpoints: ClassVar[tuple[Checkpoint, ...]] = (
        Checkpoint(
            "mobilesam",
            "vit_t",
            "https://github.com/ChaoningZhang/MobileSAM/raw/master/weights/mobile_sam.pt",
            40728226,
            "6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f",
        ),
    )
    options: ClassVar[tuple[Option, ...]] = ()
    exporter: ClassVar[str] = "triton_sam.export.mobilesam.recipe:EXPORTER"
    encode_speedup: ClassVar[float] = 2.0

    @property
    def label(self) -> str:
        """See Family.label."""
        return self.title
