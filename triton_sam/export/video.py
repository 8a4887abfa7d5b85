"""The folder of a video model, which an export writes beside the ONNX models that the video model calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..families.base import Family
from ..families.tables import ENCODER
from ..repository.folder import version_folders
from ..repository.install import write_flushed
from ..repository.names import CONFIG_NAME
from ..repository.onnx_header import read_metadata
from ..sessions.video.config import MODEL_NAME, MODEL_TEXT, video_config

_CHECKPOINT_KEYS = ("triton_sam.checkpoint", "triton_sam.checkpoint_sha256", "triton_sam.image_size")


def moves(family: Family, variant: str, workspace: Path, folder: Path) -> list[tuple[Path, Path]]:
    """Write the files of a video model to a workspace.

    Args:
        family: the family for the image size of the export.
        variant: name of the variant.
        workspace: a temporary folder on the same disk.
        folder: the folder of the video model in the repository.

    Returns:
        (finished file, place) pairs for install(), without the files that the folder has already.
    """
    config = text_move(CONFIG_NAME, video_config(family, variant), workspace, folder)
    return config + text_move(MODEL_NAME, MODEL_TEXT, workspace, folder / "1")


def text_move(name: str, text: str, workspace: Path, folder: Path) -> list[tuple[Path, Path]]:
    """Write a text file to a workspace and return its move, or no move if the folder has the same text already."""
    place = folder / name
    if place.is_file() and place.read_text("utf-8", errors="replace") == text:
        return []
    write_flushed(workspace / name, text)
    return [(workspace / name, place)]


def other_weights_warning(family: Family, variant: str, repository: Path, metadata: Mapping[str, str]) -> str:
    """Return a one-line warning if the models for videos of a variant belong to other weights; "" if they do not.

    Args:
        family: the family.
        variant: name of the variant, whose model pair was exported without the models for videos.
        repository: the model repository.
        metadata: the metadata of the exported pair.
    """
    roles = family.tracking.models if family.tracking else {}
    names = [family.model_name(role, variant) for role in roles if role != ENCODER]
    wanted = [metadata.get(key) for key in _CHECKPOINT_KEYS]
    others = [name for name in names if _weights_of(repository / name) not in (None, wanted)]
    if not others:
        return ""
    return f"{', '.join(others)} belong to other weights: export with --video too, before videos are tracked again"


def _weights_of(folder: Path) -> list[str | None] | None:
    """Return the metadata about the checkpoint of the newest version of a model; None if the folder has none."""
    if not folder.is_dir():
        return None
    for version in version_folders(folder)[-1:]:
        try:
            found = read_metadata(version / "model.onnx")
        except (OSError, ValueError):
            return None
        return [found.get(key) for key in _CHECKPOINT_KEYS]
    return None
