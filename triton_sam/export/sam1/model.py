"""Build the official SAM1 model of the `segment_anything` package, with a checkpoint or seeded random weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ...errors import ConfigurationError
from ..weights import initialised

try:
    import segment_anything.modeling
    import torch
    from torch.nn import functional
except ImportError as error:
    raise missing("exporting and verifying SAM1 needs", "export", error) from error

CHANNELS = 256
"""Channels of the image embeddings."""
PATCH = 16
"""Side of the patches that become one token of the image encoder, in pixels."""


@dataclass(frozen=True)
class Vit:
    """The dimensions of an image encoder, as in segment_anything.build_sam.

    Args:
        width: number of channels in the transformer.
        depth: number of blocks.
        heads: number of attention heads in a block.
        global_blocks: indices of the blocks that attend to the whole image. The others attend to windows of 14x14.
    """

    width: int
    depth: int
    heads: int
    global_blocks: tuple[int, ...]


SIZES: Mapping[str, Vit] = {
    "vit_b": Vit(768, 12, 12, (2, 5, 8, 11)),
    "vit_l": Vit(1024, 24, 16, (5, 11, 17, 23)),
    "vit_h": Vit(1280, 32, 16, (7, 15, 23, 31)),
    "micro": Vit(64, 2, 2, (1,)),
}
"""The image encoder of each size. "micro" is not official: it is a fast size for tests with random weights."""


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
    return initialised(
        lambda: build_model(chosen, image_size),
        checkpoint,
        random_seed,
        download=f"triton-sam download sam1 {chosen}",
        question=f"is {chosen} its size? Otherwise give another --size",
        adapt=fit_positions,
    )


def choose_size(checkpoint: str | Path | None, size: str | None) -> str:
    """Return the size, a key of SIZES: the given one, or the one that the file name of the checkpoint contains.

    Raises:
        ConfigurationError: there is no such size, or neither a size nor such a file name is given.
    """
    return size_of(checkpoint, size, SIZES, "SAM1")


def size_of(checkpoint: str | Path | None, size: str | None, sizes: Collection[str], title: str) -> str:
    """Return a size of a family whose files have the size in their names, such as vit_b in sam_vit_b_01ec64.pth.

    Args:
        checkpoint: file with the official state dict; None for random weights.
        size: the size that the caller asks for; None: the one in the name of the file.
        sizes: all sizes. Those that begin with "micro" are for tests, and errors do not name them.
        title: the family in errors.

    Raises:
        ConfigurationError: there is no such size, or neither a size nor such a file name is given.
    """
    official = [name for name in sizes if not name.startswith("micro")]
    question = f"--size {', '.join(official[:-1])} or {official[-1]}"
    if size is not None:
        if size not in sizes:
            raise ConfigurationError(f"{title} has no size {size!r}: choose one of {', '.join(official)}")
        return size
    if checkpoint is None:
        raise ConfigurationError(f"random weights need {question}")
    name = Path(checkpoint).name
    match = re.search("|".join(official), name)
    if match is None:
        raise ConfigurationError(f"the file name {name!r} does not contain a {title} size: give {question}")
    return match[0]


def build_model(size: str, image_size: int = 1024) -> torch.nn.Module:
    """Build a segment_anything.modeling.Sam with fresh weights, in eval mode on the CPU.

    This repeats segment_anything.build_sam, which supports one image size only.
    """
    modeling = segment_anything.modeling
    return assemble(modeling, build_encoder(modeling, SIZES[size], image_size), modeling.MaskDecoder, image_size)


def build_encoder(modeling: Any, vit: Vit, image_size: int) -> torch.nn.Module:
    """Build a ``modeling.ImageEncoderViT`` with fresh weights; ``modeling`` is as for assemble()."""
    encoder: torch.nn.Module = modeling.ImageEncoderViT(
        depth=vit.depth,
        embed_dim=vit.width,
        img_size=image_size,
        mlp_ratio=4,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-6),
        num_heads=vit.heads,
        patch_size=PATCH,
        qkv_bias=True,
        use_rel_pos=True,
        global_attn_indexes=vit.global_blocks,
        window_size=14,
        out_chans=CHANNELS,
    )
    return encoder


def assemble(
    modeling: Any, encoder: torch.nn.Module, mask_decoder: Callable[..., torch.nn.Module], image_size: int
) -> torch.nn.Module:
    """Put an image encoder, the prompt encoder and the mask decoder together, in eval mode.

    Args:
        modeling: segment_anything.modeling, or a module with the same classes.
        encoder: takes images of ``image_size`` and gives CHANNELS channels for each patch.
        mask_decoder: builds the mask decoder; it takes the arguments of segment_anything's MaskDecoder.
        image_size: side of the image in pixels, a multiple of PATCH.

    Returns:
        A ``modeling.Sam``.
    """
    side = image_size // PATCH
    prompts = modeling.PromptEncoder(
        embed_dim=CHANNELS,
        image_embedding_size=(side, side),
        input_image_size=(image_size, image_size),
        mask_in_chans=16,
    )
    transformer = modeling.TwoWayTransformer(depth=2, embedding_dim=CHANNELS, mlp_dim=2048, num_heads=8)
    decoder = mask_decoder(
        num_multimask_outputs=3,
        transformer=transformer,
        transformer_dim=CHANNELS,
        iou_head_depth=3,
        iou_head_hidden_dim=256,
    )
    # Sam's default mean and standard deviation equal those of build_sam.
    model: torch.nn.Module = modeling.Sam(encoder, prompts, decoder)
    return model.eval()


def fit_positions(state: dict[str, torch.Tensor], model: torch.nn.Module) -> None:
    """Interpolate the position embeddings of a checkpoint in place, if the model's image size is not 1024 pixels."""
    for name, wanted in model.state_dict().items():
        found = state.get(name)
        if not isinstance(found, torch.Tensor) or found.shape == wanted.shape:
            continue
        if name == "image_encoder.pos_embed" and found.shape[3:] == wanted.shape[3:]:
            grid = found.float().permute(0, 3, 1, 2)
            resized = functional.interpolate(grid, wanted.shape[1:3], mode="bicubic", align_corners=False)
            state[name] = resized.permute(0, 2, 3, 1)
        elif ".rel_pos_" in name and found.shape[1:] == wanted.shape[1:]:
            row = found.float().t().unsqueeze(0)
            state[name] = functional.interpolate(row, wanted.shape[0], mode="linear").squeeze(0).t()
