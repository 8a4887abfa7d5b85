"""SAM-HQ: SAM1 or MobileSAM with finer masks. Reference: segment_anything_hq.SamPredictor."""

from __future__ import annotations

from dataclasses import replace

from .points import DECODER_DIMENSIONS, DECODER_LIMITS, MASK_OUTPUTS, PROMPT_INPUTS
from .sam1 import EMBEDDINGS as SAM1_EMBEDDINGS
from .sam1 import SAM1
from .tables import DECODER, ENCODER, Checkpoint, ModelSize, ModelSpec, Tensor, by_role

_FILES = "https://huggingface.co/lkeab/hq-sam/resolve/main"

EMBEDDINGS = (*SAM1_EMBEDDINGS, Tensor("hq_features", "FP32", ("images", 32, 256, 256)))
_BEST_OUTPUTS = tuple(replace(tensor, shape=("prompts", 1, *tensor.shape[2:])) for tensor in MASK_OUTPUTS[2:])

SAMHQ = replace(
    SAM1,
    name="samhq",
    label="SAM-HQ",
    models=by_role(
        replace(SAM1.models[ENCODER], outputs=EMBEDDINGS),
        ModelSpec(
            role=DECODER,
            inputs=(*EMBEDDINGS, *PROMPT_INPUTS),
            outputs=(*MASK_OUTPUTS[:2], *_BEST_OUTPUTS),
            dimensions=DECODER_DIMENSIONS,
            limits=DECODER_LIMITS,
        ),
    ),
    candidates=1,
    sizes=(
        ModelSize("vit_tiny", config="samhq_vit_tiny"),
        ModelSize("vit_b", config="samhq_vit_b"),
        ModelSize("vit_l", config="samhq_vit_l"),
        ModelSize("vit_h", config="samhq_vit_h"),
        ModelSize("micro", official=False, config="samhq_micro"),
    ),
    default_size="vit_tiny",
    random_size="vit_tiny",
    quick_size="micro",
    checkpoints=tuple(
        Checkpoint("samhq", size, f"{_FILES}/sam_hq_{size}.pth", length, sha256)
        for size, length, sha256 in (
            # The authors publish no hashes. Several public projects list these two.
            ("vit_tiny", None, "0f32c075ccdd870ae54db2f7630e7a0878ede5a2b06d05d6fe02c65a82fb7196"),
            ("vit_b", None, ""),
            ("vit_l", None, ""),
            ("vit_h", 2570940653, "a7ac14a085326d9fa6199c8c698c4f0e7280afdbb974d2c4660ec60877b45e35"),
        )
    ),
    fine_tunes=(),
    options=(),
    exporter="triton_sam.export.samhq:EXPORTER",
)
"""SAM-HQ has the image frame and the prompts of SAM1. Its encoder also returns edge features for the decoder.

The logits of a mask are the sum of those of SAM1's mask and those of a mask from the edge features. For multimasks,
the official predictor returns this sum for the best of SAM1's three masks, so there is one candidate.
"""
