"""A variant's programs, which an export writes beside the ONNX models, and warnings about related models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ..families import get_family
from ..families.base import Family
from ..families.tables import ENCODER
from ..repository.folder import version_folders
from ..repository.install import staging, write_flushed
from ..repository.onnx_header import read_metadata

_CHECKPOINT_KEYS = ("triton_sam.checkpoint", "triton_sam.checkpoint_sha256", "triton_sam.image_size")


def program_moves(files: Mapping[Path, str], repository: Path, stack: ExitStack) -> list[tuple[Path, Path]]:
    """Write the files of missing_programs() to temporary folders of the repository.

    Returns:
        (finished file, place) pairs for install().
    """
    models = {place.relative_to(repository).parts[0] for place in files}
    workspaces = {model: stack.enter_context(staging(repository / model)) for model in sorted(models)}
    moves = []
    for place, text in files.items():
        finished = workspaces[place.relative_to(repository).parts[0]] / place.name
        write_flushed(finished, text)
        moves.append((finished, place))
    return moves


def session_warning(family: Family, variant: str, *, video: bool) -> str:
    """Return a one-line warning if a variant's image size does not support clicks on images; else ""."""
    official = get_family(family.name).image_size
    if family.image_size == official:
        return ""
    use = f"{variant} follows objects in videos only" if video else "add --video to follow objects in videos"
    return f"clicks on images need an encoder of {official} pixels: {use}"


def text_move(name: str, text: str, workspace: Path, folder: Path) -> list[tuple[Path, Path]]:
    """Write a text file to a workspace and return its move, or no move if the folder already has the same text."""
    place = folder / name
    if place.is_file() and place.read_text("utf-8", errors="replace") == text:
        return []
    write_flushed(workspace / name, text)
    return [(workspace / name, place)]


def other_weights_warning(family: Family, variant: str, repository: Path, metadata: Mapping[str, str]) -> str:
    """Return a one-line warning if a variant's models for videos have other weights; else ""."""
    roles = family.tracking.models if family.tracking else {}
    names = [family.model_name(role, variant) for role in roles if role != ENCODER]
    wanted = [metadata.get(key) for key in _CHECKPOINT_KEYS]
    others = [name for name in names if _weights_of(repository / name) not in (None, wanted)]
    if not others:
        return ""
    return f"{', '.join(others)} belong to other weights: export with --video too, before videos are tracked again"


def _weights_of(folder: Path) -> list[str | None] | None:
    """Return the checkpoint metadata of a model's newest version; None if the folder has none."""
    if not folder.is_dir():
        return None
    for version in version_folders(folder)[-1:]:
        try:
            found = read_metadata(version / "model.onnx")
        except (OSError, ValueError):
            return None
        return [found.get(key) for key in _CHECKPOINT_KEYS]
    return None
