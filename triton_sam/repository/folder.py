"""The model repository: where it is, what lies in it, and the config.pbtxt of a model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._common.bundle import bundled
from ..errors import RepositoryError
from ..families import split_model_name
from ..families.sam2 import Sam2
from .config import parse_config
from .names import CONFIG_NAME, NAME, pair_names
from .onnx_header import read_metadata

REPOSITORY_VARIABLE = "TRITON_SAM_REPOSITORY"

BUILT_IN_CHECKPOINT = Sam2.built_in
"""Name of the small default model, whose version 1 is committed."""


@dataclass(frozen=True)
class RepositoryModel:
    """One model folder of a repository.

    Args:
        name: name of the folder, which is the model's name in Triton.
        role: the role in a family that the name ends in, for example "encoder"; None for other models.
        versions: numeric version folders, ascending.
        has_weights: see weights_in(); an ensemble has none.
        problem: what Triton would refuse, one line; empty when nothing is wrong.
        metadata: what the exporter noted in the newest version's ONNX file (`triton_sam.*` keys), else empty.
    """

    name: str
    role: str | None
    versions: tuple[int, ...]
    has_weights: bool
    problem: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


def models_to_load(repository: Path, variant: str) -> list[str]:
    """Return what a local server loads for a variant: its session model, which brings the pair along, or the pair."""
    return [variant] if (repository / variant / CONFIG_NAME).is_file() else list(pair_names(variant))


def default_repository() -> Path:
    """Return the model repository that commands use when none is named.

    In this order: the environment variable TRITON_SAM_REPOSITORY, `./model_repository`, the one of the checkout that
    holds this package, the one inside the installed package. It need not exist.
    """
    named = os.environ.get(REPOSITORY_VARIABLE)
    if named:
        return Path(named)
    here = Path("model_repository")
    return here if here.is_dir() else bundled("model_repository")


def version_folders(folder: Path) -> list[Path]:
    """Return the version folders of a model, lowest first."""
    found = (path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir())
    return sorted(found, key=lambda path: int(path.name))


def weights_in(folder: Path) -> list[Path]:
    """Return what a model's newest version holds by name; Triton would load no other.

    Hidden files, with which git keeps folders, do not count. A folder does: some backends want one.
    """
    newest = version_folders(folder)[-1:]
    return sorted(path for version in newest for path in version.iterdir() if not path.name.startswith("."))


def list_models(repository: Path) -> list[RepositoryModel]:
    """Return the models of a repository by name.

    Raises:
        RepositoryError: there is no such folder.
    """
    if not repository.is_dir():
        raise RepositoryError(f"no model repository at {repository}: give --model-repository, or export a model")
    folders = sorted(path for path in repository.iterdir() if path.is_dir() and NAME.fullmatch(path.name))
    return [_inspect(folder) for folder in folders]


def _inspect(folder: Path) -> RepositoryModel:
    versions = version_folders(folder)
    files = weights_in(folder)
    config, problems = _check_config(folder)
    wanted = (config.default_model_filename if config is not None else "") or "model.onnx"
    if files and config is not None and config.backend == "onnxruntime" and wanted not in {path.name for path in files}:
        problems.append(f"version {versions[-1].name} holds no {wanted}")
    metadata, fault = _metadata(versions[-1] / wanted) if versions else ({}, None)
    return RepositoryModel(
        name=folder.name,
        role=split[1] if (split := split_model_name(folder.name)) else None,
        versions=tuple(int(version.name) for version in versions),
        has_weights=bool(files),
        problem="; ".join([*problems, *([fault] if fault else [])]),
        metadata=metadata,
    )


def _check_config(folder: Path) -> tuple[Any, list[str]]:
    path = folder / CONFIG_NAME
    try:
        config = parse_config(path.read_text("utf-8"))
    except FileNotFoundError:
        return None, [f"no {CONFIG_NAME}"]
    except (OSError, UnicodeDecodeError, RepositoryError) as error:
        return None, [f"{CONFIG_NAME}: {error}"]
    if config.name and config.name != folder.name:
        return config, [f"{CONFIG_NAME} names the model {config.name!r}, its folder is {folder.name!r}"]
    return config, []


def _metadata(path: Path) -> tuple[dict[str, str], str | None]:
    if path.suffix != ".onnx" or not path.is_file():
        return {}, None
    try:
        return read_metadata(path), None
    except (OSError, ValueError) as error:
        return {}, f"{path.parent.name}/{path.name}: {error}"
