"""EdgeTAM: SAM2 with a small image encoder, RepViT. Reference: transformers' EdgeTamModel."""

from __future__ import annotations

from dataclasses import replace

from .sam2 import EMBEDDINGS, SAM2
from .tables import Checkpoint, ModelSize
from .tracking import sam2_tracking

MEMORY_TOKENS, MEMORY_CHANNELS = 512, 64
"""The memory of a frame: 256 tokens of the whole frame, then 256 of its 16 x 16 parts, in every image size."""

EDGETAM = replace(
    SAM2,
    name="edgetam",
    label="EdgeTAM",
    title="",
    # transformers' processor resizes bytes, and its model does not limit the logits.
    resampling="fixed_point",
    logit_limit=None,
    tracking=sam2_tracking(EMBEDDINGS, 1024, (MEMORY_TOKENS, MEMORY_CHANNELS), bfloat16_memories=False),
    sizes=(
        ModelSize("repvit_m1", config="edgetam_repvit_m1"),
        ModelSize("micro", official=False, config="edgetam_micro"),
    ),
    default_size="repvit_m1",
    random_size="repvit_m1",
    quick_size="micro",
    built_in="",
    mask_generator="",  # transformers has none
    checkpoints=(
        # The official repository publishes no hash. Several public projects list this one for this commit.
        Checkpoint(
            "edgetam",
            "repvit_m1",
            "https://github.com/facebookresearch/EdgeTAM/raw/7711e012a30a2402c4eaab637bdb00a521302c91/checkpoints/edgetam.pt",
            56116523,
            "ed2d4850b8792c239689b043c47046ec239b6e808a3d9b6ae676c803fd8780df",
        ),
    ),
    fine_tunes=(),
    options=(),
    exporter="triton_sam.export.edgetam.recipe:EXPORTER",
    filled_exporter="triton_sam.export.edgetam.checkpoints:EdgeTamFilled",
)
"""EdgeTAM has the tensors, the image frame and the decoder of SAM2. The encoder and the weights differ.

Because the tensors are the same, config.pbtxt names the family; see config_for() in triton_sam.repository.config.
In videos, a small network compresses the memory of each frame to tokens. transformers keeps them in float32.
"""
