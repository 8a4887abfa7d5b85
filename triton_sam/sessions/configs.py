"""The models of a variant that are not ONNX, written from the wire contract: config.pbtxt and programs.

These are the session models of images and videos, and the models that only encode compressed images. An export writes
those of its variant, and `tools/maintain/write_configs.py` those that are committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._common.files import atomic_write
from ..errors import RepositoryError
from ..families import FAMILIES, PACKAGED, get_family
from ..families.base import Family
from ..families.names import encoder_jpeg_name, preprocess_name
from ..repository.config import parse_config
from ..repository.names import CONFIG_NAME, FAMILY_KEY
from ..wire.video import video_model
from .image.config import (
    ENCODING_FAMILIES,
    encoder_jpeg_config,
    preprocess_config,
    preprocess_program,
    session_config,
    session_program,
)
from .video.config import MODEL_TEXT, video_config

PROGRAM = "1/model.py"
Files = Mapping[str, str]
"""Texts by the path in the folder of the model."""


def programs(family: Family, variant: str | None = None, *, video: bool = True) -> dict[str, Files]:
    """Return the files of all models of a variant that are not ONNX, by model name.

    Clients send images of the official size, so a variant of another size (Family.at) has no session model. Only the
    families of this package have programs.

    Args:
        family: the family.
        variant: name of the variant; None for the family's name.
        video: with the video model, if the family follows objects through videos.
    """
    if family.name not in PACKAGED:
        return {}
    name = variant or family.name
    found: dict[str, Files] = {}
    if family.name in ENCODING_FAMILIES and name == family.name:
        found[preprocess_name(name)] = {CONFIG_NAME: preprocess_config(family), PROGRAM: preprocess_program(family)}
        # Triton requires the folder of a version, and git keeps none that is empty.
        found[encoder_jpeg_name(name)] = {CONFIG_NAME: encoder_jpeg_config(family), "1/.gitkeep": ""}
    if family.image_size == get_family(family.name).image_size:
        found[name] = {CONFIG_NAME: session_config(family, name), PROGRAM: session_program(family)}
    if video and family.tracking:
        found[video_model(family, name)] = {CONFIG_NAME: video_config(family, name), PROGRAM: MODEL_TEXT}
    return found


@dataclass(frozen=True)
class Missing:
    """The programs that a repository lacks.

    Args:
        files: the texts to write, by path.
        warnings: a line for each model that cannot be written, because another model has its name.
    """

    files: dict[Path, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def missing_programs(repository: Path, family: Family, variant: str | None = None, *, video: bool = True) -> Missing:
    """Return the programs of a variant that a repository lacks, or has for tensors of other sizes or names.

    A config.pbtxt with the same tensors stays as it is, because it may have settings of the host.

    Args:
        repository: the model repository.
        family: see programs().
        variant: see programs().
        video: see programs().
    """
    missing = Missing()
    for model, files in programs(family, variant, video=video).items():
        folder = repository / model
        there = _config_in(folder)
        wanted = parse_config(files[CONFIG_NAME])
        if there is not None and not _is_program(there, wanted):
            missing.warnings.append(f"{folder} is another model, so {model} is not written: choose another --name")
            continue
        keeps_config = there is not None and _has_same_tensors(there, wanted)
        for path, text in files.items():
            if not (path == CONFIG_NAME and keeps_config) and _text_of(folder / path) != text:
                missing.files[folder / path] = text
    return missing


def write_programs(repository: Path, family: Family, variant: str | None = None, *, video: bool = True) -> list[str]:
    """Write the programs of missing_programs() and return its warnings.

    Raises:
        OSError: the repository cannot be written.
    """
    missing = missing_programs(repository, family, variant, video=video)
    for path, text in missing.files.items():
        _write(path, text)
    return missing.warnings


def written_configs() -> dict[str, str]:
    """Return the config.pbtxt of each committed program, by model name."""
    return {model: files[CONFIG_NAME] for model, files in _committed()}


def write_configs(repository: Path) -> list[Path]:
    """Write the files of each committed program into a repository; return those that changed.

    Raises:
        OSError: the repository cannot be written.
    """
    wanted = {repository / model / path: text for model, files in _committed() for path, text in files.items()}
    changed = [path for path, text in wanted.items() if _text_of(path) != text]
    for path in changed:
        _write(path, wanted[path])
    return changed


def _committed() -> Iterator[tuple[str, Files]]:
    for name in FAMILIES:
        yield from programs(get_family(name)).items()


def _config_in(folder: Path) -> Any:
    """Return the ModelConfig in a folder; an empty one if it cannot be parsed, None without a file."""
    text = _text_of(folder / CONFIG_NAME)
    try:
        return None if text is None else parse_config(text)
    except RepositoryError:
        return parse_config("")


def _is_program(there: Any, wanted: Any) -> bool:
    """Return whether a model is of the same kind as the wanted one."""
    return bool(
        (there.backend, there.platform) == (wanted.backend, wanted.platform)
        and (FAMILY_KEY in there.parameters) == (FAMILY_KEY in wanted.parameters)
    )


def _has_same_tensors(there: Any, wanted: Any) -> bool:
    """Return whether two models have the same tensors and call the same models."""
    names = [key for key, value in wanted.parameters.items() if not value.string_value.isdecimal()]
    return bool(
        (list(there.input), list(there.output)) == (list(wanted.input), list(wanted.output))
        and there.ensemble_scheduling == wanted.ensemble_scheduling
        and all(there.parameters[key] == wanted.parameters[key] for key in names)
    )


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())
