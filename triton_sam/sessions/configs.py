"""Writes, from the wire contract, the config.pbtxt of all models that are not ONNX: see `scripts/write_configs.py`.

These models are the session models of images and videos, and the models that only encode compressed images.
"""

from __future__ import annotations

from pathlib import Path

from .._common.files import atomic_write
from ..families import FAMILIES, get_family
from ..repository.names import CONFIG_NAME
from ..wire.video import video_model
from .image.config import ENCODING_FAMILIES, encoder_jpeg_config, preprocess_config, session_config
from .video.config import video_config


def written_configs() -> dict[str, str]:
    """Return the config.pbtxt of each of these models, by model name."""
    families = [get_family(name) for name in FAMILIES]
    texts = {family.name: session_config(family) for family in families}
    texts |= {video_model(family): video_config(family) for family in families if family.tracking}
    for name in ENCODING_FAMILIES:
        texts[f"{name}_preprocess"] = preprocess_config(get_family(name))
        texts[f"{name}_encoder_jpeg"] = encoder_jpeg_config(get_family(name))
    return texts


def write_configs(repository: Path) -> list[Path]:
    """Write the config.pbtxt of each of these models into a repository; return the files that changed.

    Raises:
        OSError: the repository cannot be written.
    """
    changed = []
    for name, text in written_configs().items():
        path = repository / name / CONFIG_NAME
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, text.encode())
            changed.append(path)
    return changed
