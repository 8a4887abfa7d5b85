"""Build transformers' EdgeTamModel, with a checkpoint or seeded random weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..._common.extras import missing
from ...errors import ConfigurationError
from ..weights import initialised
from .names import image_half

try:
    import timm  # noqa: F401 - transformers builds the backbone with it
    import torch
    from transformers import EdgeTamConfig, EdgeTamModel, EdgeTamVisionConfig, TimmWrapperConfig
except ImportError as error:
    raise missing("exporting and verifying EdgeTAM needs", "export", error) from error

WEIGHTS_NAME = "model.safetensors"
"""The file with the weights in a folder in transformers' layout."""

SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"repvit_m1": {}, "micro": {"embed_dim": (8, 16, 32, 64), "depth": (1, 1, 1, 1)}}
)
"""The changes to timm's repvit_m1 in each size. "micro" is not official: it is a fast size for tests."""

_CHANNELS = {"repvit_m1": [384, 192, 96, 48], "micro": [64, 32, 16, 8]}


def load_model(
    checkpoint: str | Path | None, size: str | None, *, image_size: int = 1024, random_seed: int | None = None
) -> torch.nn.Module:
    """Build the official model with a checkpoint or with seeded random weights, ready for inference.

    Args:
        checkpoint: Meta's edgetam.pt, or a folder with model.safetensors in transformers' layout, or that file; None
            for random weights. Weights that only videos need are left out.
        size: a key of SIZES; None: "repvit_m1", the only official size.
        image_size: side of the square image that the encoder takes, in pixels; a multiple of 32.
        random_seed: seed of random weights; None with a checkpoint.

    Raises:
        ConfigurationError: checkpoint and random_seed are both given or both None, or the size is unknown.
        CheckpointError: the checkpoint is missing or damaged, or belongs to another model.
    """
    chosen = choose_size(size)
    if checkpoint is not None and Path(checkpoint).is_dir():
        checkpoint = Path(checkpoint) / WEIGHTS_NAME
    model = initialised(
        lambda: build_model(chosen, image_size),
        checkpoint,
        random_seed,
        download="triton-sam download edgetam",
        question="is it a checkpoint of EdgeTAM?",
        adapt=lambda state, _: image_half(state),
    )
    if random_seed is not None:
        _randomise_buffers(model, random_seed)
    return model.eval()


def choose_size(size: str | None) -> str:
    """Return the size, a key of SIZES.

    Raises:
        ConfigurationError: there is no such size.
    """
    if size is not None and size not in SIZES:
        raise ConfigurationError(f"EdgeTAM has no size {size!r}: its only size is repvit_m1")
    return size or "repvit_m1"


def build_model(size: str, image_size: int = 1024) -> torch.nn.Module:
    """Build an EdgeTamModel with fresh weights, in eval mode on the CPU.

    The default configuration of transformers misspells the name of the backbone, so this names it.
    """
    arguments = {"in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3], **SIZES[size]}
    vision = EdgeTamVisionConfig(
        backbone_config=TimmWrapperConfig(architecture="repvit_m1", model_args=arguments),
        backbone_channel_list=_CHANNELS[size],
        backbone_feature_sizes=[[image_size // stride] * 2 for stride in (4, 8, 16)],
    )
    config: Any = EdgeTamConfig(vision_config=vision, prompt_encoder_config={"image_size": image_size})
    model: torch.nn.Module = EdgeTamModel(config)
    return model.eval()


def _randomise_buffers(model: torch.nn.Module, seed: int) -> None:
    """Change random weights in place so that a comparison notices what a graph leaves out.

    The statistics of batch normalisation and the two encodings of positions get random values. The weights of a
    convolution are drawn with a standard deviation of sqrt(2 / inputs), so that a signal keeps its size through GELU.
    Each block adds only a small part to its input; otherwise the signal would grow from block to block.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1, generator=generator)  # type: ignore[union-attr]
            module.running_var.uniform_(0.8, 1.25, generator=generator)  # type: ignore[union-attr]
            if re.search(r"token_mixer|(mixer|ffn)\.conv2", name):
                module.weight.data.uniform_(0.1, 0.3, generator=generator)
        if isinstance(module, torch.nn.Conv2d):
            weight = module.weight.data
            weight.normal_(generator=generator).mul_((2 / weight[0].numel()) ** 0.5)
    for name, buffer in model.named_buffers():
        if name.endswith("positional_embedding"):
            buffer.normal_(generator=generator)
