"""Build the official MobileSAM of the `mobile_sam` package, with a checkpoint or seeded random weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ...errors import ConfigurationError
from ..sam1.model import assemble
from ..weights import initialised

try:
    import torch

    with warnings.catch_warnings():  # the package imports modules of timm under their former names
        warnings.simplefilter("ignore")
        from mobile_sam import modeling
        from mobile_sam.modeling.tiny_vit_sam import Conv2d_BN
except ImportError as error:
    raise missing("exporting and verifying MobileSAM needs", "export", error) from error


@dataclass(frozen=True)
class Tiny:
    """The dimensions of a TinyViT, by stage; the first stage consists of convolutions.

    Args:
        widths: number of channels. The last must be 320: by this number the official code knows the stage that keeps
            the resolution of the stage before.
        depths: number of blocks.
        heads: number of attention heads in a block.
    """

    widths: tuple[int, int, int, int]
    depths: tuple[int, int, int, int]
    heads: tuple[int, int, int, int]


SIZES: Mapping[str, Tiny] = {
    "vit_t": Tiny((64, 128, 160, 320), (2, 2, 6, 2), (2, 4, 5, 10)),
    "micro": Tiny((16, 32, 32, 320), (1, 1, 1, 1), (1, 1, 1, 10)),
}
"""The image encoder of each size. "micro" is not official: it is a fast size for tests with random weights."""


def load_model(
    checkpoint: str | Path | None, size: str | None, *, image_size: int = 1024, random_seed: int | None = None
) -> torch.nn.Module:
    """Build the official model with a checkpoint or with seeded random weights, ready for inference.

    Args:
        checkpoint: file with the official state dict; None for random weights.
        size: a key of SIZES; None: "vit_t", the only official size.
        image_size: side of the square image that the encoder takes, in pixels; a multiple of 16. The encoder has no
            weights that depend on it.
        random_seed: seed of random weights; None with a checkpoint.

    Raises:
        ConfigurationError: checkpoint and random_seed are both given or both None, or the size is unknown.
        CheckpointError: the checkpoint is missing or damaged, or belongs to another size.
    """
    chosen = choose_size(size)
    model = initialised(
        lambda: build_model(chosen, image_size),
        checkpoint,
        random_seed,
        download="triton-sam download mobilesam",
        question="is it a checkpoint of MobileSAM with the encoder vit_t?",
    )
    if random_seed is not None:
        randomise_convolutions(model, random_seed)
    # TinyViT copies its attention biases when it enters eval mode, and uses the copy.
    return model.eval()


def choose_size(size: str | None) -> str:
    """Return the size, a key of SIZES.

    Raises:
        ConfigurationError: there is no such size.
    """
    if size is not None and size not in SIZES:
        raise ConfigurationError(f"MobileSAM has no size {size!r}: its only size is vit_t")
    return size or "vit_t"


def build_model(size: str, image_size: int = 1024) -> torch.nn.Module:
    """Build a mobile_sam.modeling.Sam with fresh weights, in eval mode on the CPU.

    This repeats mobile_sam.build_sam.build_sam_vit_t, which supports one size and one image size only.
    """
    return assemble(modeling, build_encoder(modeling, SIZES[size], image_size), modeling.MaskDecoder, image_size)


def build_encoder(modeling: Any, tiny: Tiny, image_size: int) -> torch.nn.Module:
    """Build a ``modeling.TinyViT`` with fresh weights; ``modeling`` is as for triton_sam.export.sam1.model.assemble."""
    encoder: torch.nn.Module = modeling.TinyViT(
        img_size=image_size,
        embed_dims=list(tiny.widths),
        depths=list(tiny.depths),
        num_heads=list(tiny.heads),
        window_sizes=[7, 7, 14, 7],
        drop_path_rate=0.0,
    )
    return encoder


def randomise_convolutions(model: torch.nn.Module, seed: int, kind: type[Any] = Conv2d_BN) -> None:
    """Change random convolutions in place so that a comparison notices what a graph leaves out.

    The statistics of batch normalisation get random values. The weights are scaled to a standard deviation of
    sqrt(2 / inputs), so that a signal keeps its size through GELU; with torch's smaller weights, embeddings hardly
    depend on the image.

    Args:
        model: the model.
        seed: seed of the statistics.
        kind: the class of the convolutions with a batch normalisation, Conv2d_BN of mobile_sam or of a copy of it.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, kind):
            module.c.weight.mul_((2 / module.c.weight[0].numel()) ** 0.5 / module.c.weight.std())
            module.bn.running_mean.uniform_(-0.1, 0.1, generator=generator)
            module.bn.running_var.uniform_(0.8, 1.25, generator=generator)
