"""Choices of an export that commands offer. Needs no torch."""

from __future__ import annotations

PRECISIONS = ("fp32", "fp16", "int8")
"""Of exports; triton_sam.export.pipeline.Settings says what they are."""


SIZES = {
    "sam1": ("vit_b", "vit_l", "vit_h", "micro"),
    "sam2": ("tiny", "small", "base_plus", "large", "micro"),
    "sam3": ("reduced", "full"),
}
"""Sizes that random weights can be had in, by family; what is not official is for tests."""


DEFAULT_SIZES = {"sam1": "vit_b", "sam2": "tiny", "sam3": "reduced"}


SIZE_HELP = (
    "size for --random: SAM1 vit_b (default), vit_l, vit_h; SAM2 tiny (default), small, base_plus, large; "
    "SAM3 reduced (default, a quick one for tests), full"
)
"""What commands say about their option --size."""
