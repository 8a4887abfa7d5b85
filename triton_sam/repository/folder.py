"""The location of the model repository, and its models."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._common.bundle import bundled, checkout, data_folder
from ..errors import RepositoryError
from ..families import spec_of, split_model_name
from ..families.sam2 import SAM2
from .config import parse_config
from .names import CONFIG_NAME, NAME, VERSION, VERSION_TO_TRITON
from .onnx_header import GUARD_KEY, read_metadata

logger = logging.getLogger(__name__)

REPOSITORY_VARIABLE = "TRITON_SAM_REPOSITORY"
"""The environment variable with the path of the model repository."""

BUILT_IN_CHECKPOINT = SAM2.built_in
"""The name of the demo model, whose version 1 is part of this package."""


@dataclass(frozen=True)
class RepositoryModel:
    """One model folder of a repository.

    Args:
        name: name of the folder and of the model in Triton.
        role: the role at the end of the name, for example "encoder"; None without one.
        versions: numbers of the version folders, in ascending order.
        has_weights: whether weights_in() finds files; False for an ensemble.
        problem: the reason why Triton would refuse the model, in one line; empty without one.
        metadata: the metadata of the newest version's ONNX file, with the exporter's `triton_sam.*` keys; empty without
            such a file.
    """

    name: str
    role: str | None
    versions: tuple[int, ...]
    has_weights: bool
    problem: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


FETCH_OFFICIAL_WEIGHTS = "`triton-sam setup sam2` fetches official weights"
"""The advice for users of the demo model."""


def is_demo_model(metadata: Mapping[str, str]) -> bool:
    """Return whether the metadata of an ONNX file are those of the demo model."""
    return metadata.get("triton_sam.checkpoint") == BUILT_IN_CHECKPOINT


def default_repository() -> Path:
    """Return the path of the model repository that commands use by default. It need not exist.

    This is the first of: the environment variable TRITON_SAM_REPOSITORY, `./model_repository` if it exists, and the
    model repository of the checkout that contains this package. For an installed wheel, it is the user's own
    repository, or the demo model inside the package until that exists.
    """
    chosen = writable_repository(create=False)
    return chosen if chosen.is_dir() or chosen != _own_repository() else bundled("model_repository")


def writable_repository(*, create: bool = True) -> Path:
    """Return the path of the model repository that commands change by default.

    For an installed wheel, this is the user's own repository, not the package.

    Args:
        create: create the user's own repository, a copy of the one in the package, if it does not exist.
    """
    named = os.environ.get(REPOSITORY_VARIABLE)
    if named:
        return Path(named)
    here = Path("model_repository")
    if here.is_dir():
        return here
    if checkout() is not None:
        return bundled("model_repository")
    own = _own_repository()
    if create and not own.is_dir():
        own.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=own.parent) as temporary:
            copy = shutil.copytree(bundled("model_repository"), Path(temporary, own.name))
            try:
                copy.rename(own)
            except OSError:
                if not own.is_dir():  # otherwise, another process was faster
                    raise
    return own


def _own_repository() -> Path:
    return data_folder() / "model_repository"


def version_folders(folder: Path) -> list[Path]:
    """Return the version folders of a model, in ascending order of the versions."""
    found = (path for path in folder.iterdir() if VERSION.fullmatch(path.name) and path.is_dir())
    return sorted(found, key=lambda path: int(path.name))


def mistaken_versions(folder: Path) -> list[Path]:
    """Return the subfolders of a model that Triton reads as versions although their names are not integers."""
    found = (path for path in folder.iterdir() if VERSION_TO_TRITON.fullmatch(path.name) and path.is_dir())
    return sorted(path for path in found if not VERSION.fullmatch(path.name))


def weights_in(folder: Path) -> list[Path]:
    """Return the files and folders in the newest version of a model, which Triton loads, sorted by name.

    Hidden files are excluded, because they only make git keep the folder. Folders are included, because some backends
    need them.
    """
    newest = version_folders(folder)[-1:]
    return sorted(path for version in newest for path in version.iterdir() if not path.name.startswith("."))


def list_models(repository: Path) -> list[RepositoryModel]:
    """Return the models of a repository, sorted by name.

    Raises:
        RepositoryError: the repository does not exist or is not a folder.
    """
    if not repository.is_dir():
        raise RepositoryError(f"no model repository at {repository}: give --model-repository, or export a model")
    folders = readable_folders(path for path in subfolders(repository) if NAME.fullmatch(path.name))
    return [_inspect(folder) for folder in folders]


def subfolders(repository: Path) -> list[Path]:
    """Return the folders in a repository, sorted by name."""
    try:
        return sorted(path for path in repository.iterdir() if path.is_dir())
    except OSError as error:
        raise RepositoryError(f"the model repository {repository} cannot be read: {error.strerror}") from error


def readable_folders(folders: Iterable[Path]) -> list[Path]:
    """Return the folders that this user may read, with their version folders, and log one line for each other folder.

    A separate disk has a folder `lost+found`, which only root may read.
    """
    found = []
    for folder in folders:
        try:
            weights_in(folder)
        except OSError as error:
            logger.warning("%s is left out: it cannot be read (%s)", error.filename or folder, error.strerror)
        else:
            found.append(folder)
    return found


def unguarded_graphs(repository: Path) -> list[Path]:
    """Return the ONNX files of model pairs, in all versions, that do not refuse tensors of wrong sizes.

    With some versions of ONNX Runtime, one request can crash a server with these files.
    """
    found = []
    for model in list_models(repository):
        config, _ = _check_config(repository / model.name)
        if config is None or model.problem or spec_of(tensor.name for tensor in config.input) is None:
            continue
        filename = config.default_model_filename or "model.onnx"
        for path in [repository / model.name / str(version) / filename for version in model.versions]:
            metadata, problem = _metadata(path)
            if path.is_file() and not problem and GUARD_KEY not in metadata:
                found.append(path)
    return found


def _inspect(folder: Path) -> RepositoryModel:
    versions = version_folders(folder)
    files = weights_in(folder)
    config, problems = _check_config(folder)
    wanted = (config.default_model_filename if config is not None else "") or "model.onnx"
    if files and config is not None and config.backend == "onnxruntime" and wanted not in {path.name for path in files}:
        problems.append(f"version {versions[-1].name} has no {wanted}")
    metadata, metadata_problem = _metadata(versions[-1] / wanted) if versions else ({}, None)
    return RepositoryModel(
        name=folder.name,
        role=split[1] if (split := split_model_name(folder.name)) else None,
        versions=tuple(int(version.name) for version in versions),
        has_weights=bool(files),
        problem="; ".join([*problems, *([metadata_problem] if metadata_problem else [])]),
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
        return config, [f"{CONFIG_NAME} names the model {config.name!r}, but its folder is {folder.name!r}"]
    return config, []


def _metadata(path: Path) -> tuple[dict[str, str], str | None]:
    if path.suffix != ".onnx" or not path.is_file():
        return {}, None
    try:
        return read_metadata(path), None
    except (OSError, ValueError) as error:
        return {}, f"{path.parent.name}/{path.name}: {error}"
