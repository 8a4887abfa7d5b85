"""MobileSAM: SAM1 with a small image encoder, TinyViT. Reference: mobile_sam.SamPredictor."""

from __future__ import annotations

from dataclasses import replace

from .sam1 import ELECTRON_MICROSCOPY, LIGHT_MICROSCOPY, SAM1, micro_sam
from .tables import Checkpoint, ModelSize

MOBILESAM = replace(
    SAM1,
    name="mobilesam",
    label="MobileSAM",
    sizes=(
        ModelSize("vit_t", config="mobilesam_vit_t"),
        ModelSize("micro", official=False, config="mobilesam_micro"),
    ),
    default_size="vit_t",
    random_size="vit_t",
    quick_size="micro",
    checkpoints=(
        Checkpoint(
            "mobilesam",
            "vit_t",
            "https://github.com/ChaoningZhang/MobileSAM/raw/master/weights/mobile_sam.pt",
            40728226,
            "6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f",
        ),
    ),
    fine_tunes=(
        *micro_sam(
            "mobilesam",
            LIGHT_MICROSCOPY,
            {
                "vit_t_lm": ("72ec5074774761a6e5c05a08942f981e", "faithful-chicken/1.1"),
            },
        ),
        *micro_sam(
            "mobilesam",
            ELECTRON_MICROSCOPY,
            {
                "vit_t_em_organelles": ("253474720c497cce605e57c9b1d18fd9", "greedy-whale/1"),
            },
        ),
    ),
    options=(),
    exporter="triton_sam.export.mobilesam:EXPORTER",
)
"""MobileSAM has the tensors, the image frame and the decoder of SAM1. Only the encoder and the weights differ.

Because the tensors are the same, config.pbtxt names the family; see config_for() in triton_sam.repository.config.
"""
