"""Build the official SAM1 model of the `segment_anything` package: sizes, checkpoint, or seeded random weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..._common.extras import missing
from ...errors import ConfigurationError
from ..weights import load_strictly, randomise, read_state_dict

try:
    import torch
    from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, Sam, TwoWayTransformer
    from torch.nn import functional
except ImportError as error:
    raise missing("exporting and verifying SAM1 needs", "export", error) from error

CHANNELS = 256
PATCH = 16


@dataclass(frozen=True)
class Vit:
    """Sizes of an image encoder, as in segment_anything.build_sam.

    Args:
        width: channels of the transformer.
        depth: number of blocks.
        heads: attention heads of a block.
        global_blocks: blocks that attend to the whole image; the others to windows of 14x14.
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
"""Size name -> image encoder. "micro" is no official size: a quick one for tests, with random weights."""


def guess_size(checkpoint: Path) -> str:
    """Return the size that belongs to a checkpoint's file name, for example sam_vit_b_01ec64.pth.

    Raises:
        ConfigurationError: the name follows no known pattern.
    """
    match = re.search(r"vit_[blh]", checkpoint.name)
    if match is None:
        raise ConfigurationError(
            f"cannot tell the SAM1 size from the name {checkpoint.name!r}: give --size vit_b, vit_l or vit_h"
        )
    return match[0]


def load_model(
    checkpoint: str | Path | None, size: str | None, *, image_size: int = 1024, random_seed: int | None = None
) -> torch.nn.Module:
    """Build the official model with a checkpoint or with seeded random weights, ready for inference.

    Args:
        checkpoint: official state dict, or None with ``random_seed``.
        size: a key of SIZES; None: by the checkpoint's file name.
        image_size: side of the square that the encoder sees, pixels, a multiple of 16. Position embeddings of a
            checkpoint (1024) are interpolated to it.
        random_seed: seeded random weights in place of a checkpoint.

    Raises:
        ConfigurationError: neither or both of checkpoint and random_seed, or an unknown size.
        CheckpointError: a checkpoint that is missing, damaged or of another size.
    """
    if (checkpoint is None) == (random_seed is None):
        raise ConfigurationError("give a checkpoint, or ask for random weights")
    chosen = choose_size(checkpoint, size)
    # Layers draw their first weights from torch's global generator: seeded here, and put back for the caller.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed or 0)
        model = build_model(chosen, image_size)
    if checkpoint is None:
        randomise(model, random_seed or 0)
    else:
        path = Path(checkpoint)
        state = dict(read_state_dict(path, f"triton-sam download sam1 {chosen}"))
        _fit_positions(state, model)
        load_strictly(model, state, path, f"is it a {chosen}? --size says so")
    return model.requires_grad_(False)


def choose_size(checkpoint: str | Path | None, size: str | None) -> str:
    """Return a key of SIZES: the given one, or that of the checkpoint's file name.

    Raises:
        ConfigurationError: there is no such size, or nothing to tell it by.
    """
    if size is None:
        if checkpoint is None:
            raise ConfigurationError("random weights need --size vit_b, vit_l or vit_h")
        return guess_size(Path(checkpoint))
    if size not in SIZES:
        raise ConfigurationError(f"no SAM1 size {size!r}: one of vit_b, vit_l, vit_h")
    return size


def build_model(size: str, image_size: int = 1024) -> torch.nn.Module:
    """Build a segment_anything.modeling.Sam without weights of its own, in eval mode on the CPU.

    As segment_anything.build_sam, which knows one image size only.
    """
    vit, side = SIZES[size], image_size // PATCH
    encoder = ImageEncoderViT(
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
    prompts = PromptEncoder(
        embed_dim=CHANNELS,
        image_embedding_size=(side, side),
        input_image_size=(image_size, image_size),
        mask_in_chans=16,
    )
    decoder = MaskDecoder(
        num_multimask_outputs=3,
        transformer=TwoWayTransformer(depth=2, embedding_dim=CHANNELS, mlp_dim=2048, num_heads=8),
        transformer_dim=CHANNELS,
        iou_head_depth=3,
        iou_head_hidden_dim=256,
    )
    # The model's defaults for mean and standard deviation are those of build_sam.
    model: torch.nn.Module = Sam(encoder, prompts, decoder)
    return model.eval()


def _fit_positions(state: dict[str, torch.Tensor], model: torch.nn.Module) -> None:
    """Interpolate the position embeddings of a 1024 checkpoint to the model's image size; nothing at 1024."""
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
