"""The configurations of transformers' SAM3 models, and their checkpoints."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ..._common.text import first_line
from ...errors import CheckpointError, ConfigurationError
from .checkpoints import checkpoint_folder

try:
    import torch
    from transformers import Sam3Config, Sam3TrackerConfig, Sam3TrackerVideoConfig
    from transformers.utils import logging as transformers_logging
except ImportError as error:
    raise missing("exporting and verifying SAM3 needs", "export", error) from error

SIZES = ("full", "reduced")
"""The sizes for random weights. "reduced" is not official, but a fast size for tests."""

_REDUCED_BACKBONE = {
    "model_type": "sam3_vit_model",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "global_attn_indexes": [1],
}
"""The reduced size has one layer with windowed attention and one with global attention.

Image size, patch size and neck equal those of the full size, so all tensors on the wire have the same shapes."""
_REDUCED_VISION = {"model_type": "sam3_vision_model", "backbone_config": _REDUCED_BACKBONE}

_REDUCED_DETECTOR: dict[str, Any] = {
    "text_config": {
        "vocab_size": 49408,
        "hidden_size": 64,
        "intermediate_size": 128,
        "projection_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "hidden_act": "gelu",
    },
    "geometry_encoder_config": {"num_layers": 1},
    "detr_encoder_config": {"num_layers": 1},
    "detr_decoder_config": {"num_layers": 2},
}

_REDUCED_MEMORY: dict[str, Any] = {"memory_attention_num_layers": 2, "memory_attention_feed_forward_hidden_size": 64}


def configuration(size: str) -> Any:
    if size not in SIZES:
        raise ConfigurationError(f"SAM3 has no size {size!r}: choose one of {', '.join(SIZES)}")
    if size == "full":
        return Sam3TrackerConfig()
    return Sam3TrackerConfig(vision_config=_REDUCED_VISION)


def video_configuration(size: str) -> Any:
    """Return the Sam3TrackerVideoConfig of a size. The reduced memory has few layers."""
    if size == "full":
        return Sam3TrackerVideoConfig()
    return Sam3TrackerVideoConfig(vision_config=_REDUCED_VISION, **_REDUCED_MEMORY)


def detector_configuration(size: str) -> Any:
    """Return the Sam3Config of a size. The reduced detector has few layers, but the tensors of the full one."""
    vision = configuration(size).vision_config
    reduced = {} if size == "full" else _REDUCED_DETECTOR
    return Sam3Config(vision_config=vision, **reduced)


def load_official(checkpoint: Path, official: Any, **options: Any) -> Any:
    """Return a transformers model of a class with the weights of a checkpoint."""
    folder = checkpoint_folder(checkpoint)
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        model, report = official.from_pretrained(
            os.fspath(folder), local_files_only=True, dtype=torch.float32, output_loading_info=True, **options
        )
    except Exception as error:  # safetensors, json and transformers share no base class below Exception
        raise CheckpointError(f"{folder} is not a readable SAM3 checkpoint: {first_line(error)}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    missing, misfit = sorted(report["missing_keys"]), sorted(report["mismatched_keys"])
    if missing or misfit:
        raise CheckpointError(
            f"{folder} is not a complete SAM3 checkpoint: {len(missing)} tensors missing, {len(misfit)} with another "
            f"shape (for example {(missing or misfit)[0]})"
        )
    loaded: torch.nn.Module = model.eval()
    return loaded
