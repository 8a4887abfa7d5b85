"""A model repository with a toy pair of SAM2, whose encoder and decoder need a twentieth of the demo model's time."""

from __future__ import annotations

from pathlib import Path

from support.light_encoder import light_repository, replace
from support.toy_decoder import toy_decoder


def toy_repository(folder: Path) -> Path:
    """Fill a model repository with the project's SAM2 models, with the toy pair instead of the demo model."""
    light_repository(folder)
    replace(folder / "sam2_decoder" / "1" / "model.onnx", toy_decoder())
    return folder
