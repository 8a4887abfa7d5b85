"""Build transformers' EdgeTamVideoModel, with a checkpoint or seeded random weights. Its image half is EdgeTamModel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..._common.extras import missing
from ...errors import ConfigurationError
from ..weights import initialised
from .names import VIDEO_HALF, adapt_names

try:
    import timm  # noqa: F401 - transformers builds the backbone with it
    import torch
    from transformers import (
        EdgeTamConfig,
        EdgeTamModel,
        EdgeTamVideoConfig,
        EdgeTamVideoModel,
        EdgeTamVisionConfig,
        TimmWrapperConfig,
    )
except ImportError as error:
    raise missing("exporting and verifying EdgeTAM needs", "export", error) from error

WEIGHTS_NAME = "model.safetensors"
"""The file with the weights in a folder in transformers' layout."""

SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"repvit_m1": {}, "micro": {"embed_dim": (8, 16, 32, 64), "depth": (1, 1, 1, 1)}}
)
"""The changes to timm's repvit_m1 in each size. "micro" is not official: it is a fast size for tests."""

_STRIDE = 16
_WITHOUT_VIDEO = "triton_sam_without_video"
_CHANNELS = {"repvit_m1": [384, 192, 96, 48], "micro": [64, 32, 16, 8]}


def load_model(
    checkpoint: str | Path | None, size: str | None, *, image_size: int = 1024, random_seed: int | None = None
) -> torch.nn.Module:
    """Build the official model with a checkpoint or with seeded random weights, ready for inference.

    Args:
        checkpoint: Meta's edgetam.pt, or a folder with model.safetensors in transformers' layout, or that file; None
            for random weights. If it has no weights that only videos need, the model keeps its fresh ones, and
            has_video() returns False.
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
        adapt=_adapt,
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
    """Build an EdgeTamVideoModel with fresh weights, in eval mode on the CPU.

    The default configuration of transformers misspells the name of the backbone, so this names it. The two settings of
    the memory are those of Meta's edgetam.yaml, which differ from the defaults of transformers.
    """
    side = image_size // _STRIDE
    config: Any = EdgeTamVideoConfig(
        vision_config=_vision(size, image_size),
        prompt_encoder_config={"image_size": image_size},
        image_size=image_size,
        memory_attention_rope_feat_sizes=[side, side],
        enable_temporal_pos_encoding_for_object_pointers=False,
        enable_occlusion_spatial_embedding=False,
    )
    model: torch.nn.Module = EdgeTamVideoModel(config)
    return model.eval()


def image_model(model: Any) -> torch.nn.Module:
    """Return the EdgeTamModel with the weights of an EdgeTamVideoModel, in eval mode."""
    config: Any = EdgeTamConfig(
        vision_config=model.config.vision_config, prompt_encoder_config={"image_size": model.image_size}
    )
    image: torch.nn.Module = EdgeTamModel(config)
    state = model.state_dict()
    image.load_state_dict({name: state[name] for name in image.state_dict()})
    return image.eval().requires_grad_(False)


def build_image_model(size: str) -> torch.nn.Module:
    """Build an EdgeTamModel with fresh weights, so that its parameters can be counted."""
    config: Any = EdgeTamConfig(vision_config=_vision(size, 1024))
    model: torch.nn.Module = EdgeTamModel(config)
    return model.eval()


def has_video(model: Any) -> bool:
    """Return whether the weights of a model from load_model() include those that videos need."""
    return not getattr(model, _WITHOUT_VIDEO, False)


def _vision(size: str, image_size: int) -> Any:
    arguments = {"in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3], **SIZES[size]}
    return EdgeTamVisionConfig(
        backbone_config=TimmWrapperConfig(architecture="repvit_m1", model_args=arguments),
        backbone_channel_list=_CHANNELS[size],
        backbone_feature_sizes=[[image_size // stride] * 2 for stride in (4, 8, _STRIDE)],
    )


def _adapt(state: dict[str, Any], model: torch.nn.Module) -> None:
    adapt_names(state, torch.cat, lambda weight: weight.chunk(2))
    if not any(name.startswith(VIDEO_HALF) for name in state):
        state.update({name: value for name, value in model.state_dict().items() if name.startswith(VIDEO_HALF)})
        setattr(model, _WITHOUT_VIDEO, True)


def _randomise_buffers(model: torch.nn.Module, seed: int) -> None:
    """Change random weights in place so that a comparison notices what a graph leaves out.

    The statistics of batch normalisation and the two encodings of positions get random values. The weights of a
    convolution are drawn with a standard deviation of sqrt(2 / inputs), so that a signal keeps its size through GELU.
    Each block adds only a small part to its input; otherwise the signal would grow from block to block. Those of a
    linear layer are drawn with a standard deviation of sqrt(1 / inputs), so that masks depend on prompts and on the
    memory; in the layers of the memory with half of it, because each frame would enlarge the rounding of the frames
    before. The bias of the object scores is raised, so that objects are visible.
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
        if isinstance(module, torch.nn.Linear):
            gain = 0.5 if name.startswith(("memory_attention.", "spatial_perceiver.")) else 1.0
            module.weight.data.normal_(generator=generator).mul_(gain * module.in_features**-0.5)
    model.mask_decoder.pred_obj_score_head.proj_out.bias.data += 1  # type: ignore[union-attr, operator]
    for name, buffer in model.named_buffers():
        if name.endswith("positional_embedding"):
            buffer.normal_(generator=generator)
