"""SAM3-LiteText: a small text encoder, distilled from SAM3's, which replaces it.

Only the text encoder and the projection of its features differ from SAM3. Reference: transformers' Sam3LiteTextModel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ...errors import CheckpointError, ConfigurationError
from ..weights import randomise, seeded
from .model import load_official

try:
    import torch
    from transformers import Sam3LiteTextConfig, Sam3LiteTextModel
    from transformers.models.sam3_lite_text import configuration_sam3_lite_text, modeling_sam3_lite_text
except ImportError as error:
    raise missing("exporting and verifying SAM3-LiteText needs", "export", error) from error

LITE = "lite"
"""The value of --text-encoder for random weights."""

_REDUCED_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "projection_dim": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 77,
}
"""One attention layer between two convolutional ones. As in the full size, 77 positions are scaled to 32 tokens."""


def check_choice(choice: str, *, is_random: bool, concepts: bool) -> None:
    """Check the value of --text-encoder before anything is built."""
    if not concepts:
        raise ConfigurationError("--text-encoder is for words: give --concepts too")
    if is_random:
        if choice != LITE:
            raise ConfigurationError(f"--text-encoder with random weights takes {LITE!r} only, not {choice!r}")
        return
    if not (Path(choice) / "config.json").is_file():
        raise CheckpointError(
            f"--text-encoder {choice}: there is no config.json in such a folder: give the folder of a checkpoint of "
            "SAM3-LiteText in transformers' format, for example of vil-uob/sam3-litetext-s0"
        )


def replace_text_encoder(detector: Any, choice: str, size: str | None, random_seed: int | None) -> None:
    """Replace a detector's text encoder and the projection of its features with those of SAM3-LiteText.

    Args:
        choice: a checked value, see check_choice(). The checkpoint's other weights are SAM3's, and are not used.
    """
    if random_seed is None:
        lite = load_official(Path(choice), Sam3LiteTextModel)
        encoder, projection = lite.text_encoder, lite.text_projection
    else:
        encoder, projection = _random(size or "full", detector.text_projection.out_features, random_seed)
    detector.text_encoder, detector.text_projection = encoder.eval(), projection.eval()
    detector.requires_grad_(False)


def text_configuration(size: str) -> Any:
    """Return the configuration of the text encoder for a size in model.SIZES."""
    official: Any = configuration_sam3_lite_text.Sam3LiteTextTextConfig
    return official(**({} if size == "full" else _REDUCED_TEXT))


def official_model(detector: Any) -> Any:
    """Return transformers' Sam3LiteTextModel with the weights of a detector after replace_text_encoder()."""
    config = detector.config
    parts = ("geometry_encoder", "detr_encoder", "detr_decoder", "mask_decoder")
    details = {f"{part}_config": _plain(getattr(config, f"{part}_config")) for part in parts}
    official: Any = Sam3LiteTextModel
    settings: Any = Sam3LiteTextConfig
    text = detector.text_encoder.config.to_dict()
    model = official(settings(vision_config=config.vision_config, text_config=text, **details))
    model.load_state_dict(detector.state_dict())
    return model.eval().requires_grad_(False)


def _plain(config: Any) -> dict[str, Any]:
    """Return the values of a configuration without its type name, which differs between the two models."""
    return {name: value for name, value in config.to_dict().items() if name != "model_type"}


def _random(size: str, channels: int, seed: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    official: Any = modeling_sam3_lite_text.Sam3LiteTextTextModel
    config = text_configuration(size)
    encoder, projection = seeded(lambda: (official(config), torch.nn.Linear(config.hidden_size, channels)), seed)
    for index, part in enumerate((encoder, projection)):
        randomise(part, seed + index)
    return encoder, projection
