"""Build the official SAM-HQ of the `segment_anything_hq` package, with a checkpoint or seeded random weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ..._common.extras import missing
from ..mobilesam import model as mobilesam
from ..sam1 import model as sam1
from ..weights import initialised

try:
    import torch

    with warnings.catch_warnings():  # the package imports modules of timm under their former names
        warnings.simplefilter("ignore")
        from segment_anything_hq import modeling
        from segment_anything_hq.modeling.tiny_vit_sam import Conv2d_BN
except ImportError as error:
    raise missing("exporting and verifying SAM-HQ needs", "export", error) from error

SIZES: Mapping[str, sam1.Vit | mobilesam.Tiny] = {
    "vit_tiny": mobilesam.SIZES["vit_t"],
    "vit_b": sam1.SIZES["vit_b"],
    "vit_l": sam1.SIZES["vit_l"],
    "vit_h": sam1.SIZES["vit_h"],
    "micro": mobilesam.SIZES["micro"],
    "micro_vit": sam1.Vit(64, 3, 2, (1, 2)),
}
"""The image encoder of each size. "micro" and "micro_vit" are not official: they are fast sizes for tests."""


def load_model(
    checkpoint: str | Path | None, size: str | None, *, image_size: int = 1024, random_seed: int | None = None
) -> torch.nn.Module:
    """Build the official model with a checkpoint or with seeded random weights, ready for inference.

    Args:
        checkpoint: file with the official state dict; None for random weights.
        size: a key of SIZES; None: chosen by the file name of the checkpoint.
        image_size: side of the square image that the encoder takes, in pixels; a multiple of 16. The position
            embeddings of a checkpoint, which are those of 1024 pixels, are interpolated to it.
        random_seed: seed of random weights; None with a checkpoint.

    Raises:
        ConfigurationError: checkpoint and random_seed are both given or both None, or the size is unknown.
        CheckpointError: the checkpoint is missing or damaged, or belongs to another size.
    """
    chosen = choose_size(checkpoint, size)
    model = initialised(
        lambda: build_model(chosen, image_size),
        checkpoint,
        random_seed,
        download=f"triton-sam download samhq {chosen}",
        question=f"is {chosen} its size? Otherwise give another --size",
        adapt=sam1.fit_positions,
    )
    if random_seed is not None:
        mobilesam.randomise_convolutions(model, random_seed, Conv2d_BN)
    # TinyViT copies its attention biases when it enters eval mode, and uses the copy.
    return model.eval()


def choose_size(checkpoint: str | Path | None, size: str | None) -> str:
    """Return the size, a key of SIZES: the given one, or the one that the file name of the checkpoint contains.

    Raises:
        ConfigurationError: there is no such size, or neither a size nor such a file name is given.
    """
    return sam1.size_of(checkpoint, size, SIZES, "SAM-HQ")


def build_model(size: str, image_size: int = 1024) -> torch.nn.Module:
    """Build a segment_anything_hq.modeling.Sam with fresh weights, in eval mode on the CPU.

    This repeats segment_anything_hq.build_sam, which supports one image size only.
    """
    chosen = SIZES[size]
    if isinstance(chosen, mobilesam.Tiny):
        encoder, channels = mobilesam.build_encoder(modeling, chosen, image_size), chosen.widths[2]
    else:
        encoder, channels = sam1.build_encoder(modeling, chosen, image_size), chosen.width
    return sam1.assemble(modeling, encoder, partial(modeling.MaskDecoderHQ, vit_dim=channels), image_size)
