"""The location of the model repository, and its models."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from .._common.bundle import bundled, checkout, data_folder
from ..errors import RepositoryError
from ..families import roles, spec_of, split_model_name
from ..families.sam2 import SAM2
from ..families.tables import ENCODER
from .config import ALIAS_KEY, CONFIG_NAME, NAME, VERSION, VERSION_TO_TRITON, name_problem, parse_config
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
        config: the parsed config.pbtxt; an empty message if there is none, or if it cannot be parsed.
        config_problem: the reason why the config.pbtxt cannot be parsed, in one line; empty without one. A folder with
            this problem is still loaded, so that the server itself reports why it refuses the model.
    """

    path: Path
    config: Any = field(default_factory=partial(parse_config, ""), compare=False)
    config_problem: str = ""

    @property
    def name(self) -> str:
        """The name of the folder and of the model in Triton."""
        return self.path.name

    @property
    def role(self) -> str | None:
        """The role at the end of the name, for example "encoder"; None without one."""
        split = split_model_name(self.name)
        return split[1] if split else None

    @property
    def versions(self) -> tuple[int, ...]:
        """The numbers of the version folders, in ascending order."""
        return tuple(int(version.name) for version in version_folders(self.path))

    @property
    def has_config(self) -> bool:
        """True if there is a non-empty config.pbtxt."""
        return bool(self.config_problem) or self.config.ByteSize() > 0

    @property
    def has_weights(self) -> bool:
        """True if weights_in() finds files; False for an ensemble."""
        return bool(weights_in(self.path))

    @property
    def has_content(self) -> bool:
        """True if there is something to load. An ensemble needs only a version folder."""
        return bool(self.versions) if self.is_ensemble else self.has_weights

    @property
    def is_ensemble(self) -> bool:
        """True for a model that only calls other models and has no weights itself."""
        return self.config.platform == "ensemble" or bool(self.config.HasField("ensemble_scheduling"))

    @property
    def alias_of(self) -> str:
        """The model with another name: the step of an ensemble with one, or the parameter ALIAS_KEY; "" for others."""
        if ALIAS_KEY in self.config.parameters:
            return str(self.config.parameters[ALIAS_KEY].string_value)
        steps = self.config.ensemble_scheduling.step
        return steps[0].model_name if len(steps) == 1 else ""

    @property
    def expected_weights(self) -> Path:
        """The path where Triton looks for the weights, in the newest version."""
        version = self.versions[-1] if self.versions else 1
        return self.path / str(version) / (self.config.default_model_filename or "model.onnx")

    @property
    def config_is_complete(self) -> bool:
        """True if the config lists inputs and outputs, so that the server need not derive them from the weights."""
        return bool(self.config.input and self.config.output)

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the newest version's ONNX file, with the exporter's `triton_sam.*` keys; else empty."""
        return _metadata(self.expected_weights)[0]

    @property
    def problem(self) -> str:
        """The reason why Triton would refuse the model, in one line; empty without one."""
        problems = [self.config_problem, _metadata(self.expected_weights)[1]]
        if not (self.path / CONFIG_NAME).exists():
            problems.insert(0, f"no {CONFIG_NAME}")
        if self.config.name not in ("", self.name):
            problems.insert(0, f"{CONFIG_NAME} names the model {self.config.name!r}, but its folder is {self.name!r}")
        files = {path.name for path in weights_in(self.path)}
        if files and self.config.backend == "onnxruntime" and self.expected_weights.name not in files:
            problems.insert(-1, f"version {self.versions[-1]} has no {self.expected_weights.name}")
        return "; ".join(filter(None, problems))

    def dependencies(self, known: Iterable[str]) -> set[str]:
        """Return the names of the models that this model calls.

        These are the steps of an ensemble, the model pair of a session model, and any known models in its parameters.
        """
        steps = {step.model_name for step in self.config.ensemble_scheduling.step}
        values = {key: parameter.string_value for key, parameter in self.config.parameters.items()}
        if ENCODER in values:  # an alias of a session model calls the models of its target itself
            values.pop(ALIAS_KEY, None)
        words = {word for text in values.values() for word in re.split(r"[\s,]+", text)}
        called = {value for key, value in values.items() if key in roles() and split_model_name(value)}
        called |= {value for key, value in values.items() if key == ALIAS_KEY}
        return (words.intersection(known) | called | steps) - {self.name}


def read_model(folder: Path) -> RepositoryModel:
    """Return the model of a folder."""
    try:
        return RepositoryModel(folder, parse_config((folder / CONFIG_NAME).read_text("utf-8")))
    except FileNotFoundError:
        return RepositoryModel(folder)
    except (OSError, UnicodeDecodeError, RepositoryError) as error:
        return RepositoryModel(folder, config_problem=f"{CONFIG_NAME}: {error}")


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
            target = Path(temporary, own.name)
            without = shutil.ignore_patterns("__pycache__")  # pip compiles the session models
            try:
                copy = shutil.copytree(bundled("model_repository"), target, ignore=without)
            except shutil.Error as error:  # it has a triple for each file: source, target and text of the error
                why = error.args[0][0][2].partition("] ")[2].partition(": ")[0]
                raise RepositoryError(f"cannot copy the demo model to {own.parent}: {why}") from error
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
    """Return the models of a repository, sorted by name; raise RepositoryError if it is not a folder.

    Folders that this user may not read, and models with invalid names, are left out with a warning.
    """
    if not repository.is_dir():
        raise RepositoryError(f"no model repository at {repository}: give --model-repository, or export a model")
    folders = readable_folders(path for path in subfolders(repository) if not path.name.startswith("."))
    models = [read_model(folder) for folder in folders]
    for model in models:
        if not NAME.fullmatch(model.name) and (model.has_config or model.versions):
            _warn(model.path, name_problem(model.name))
    return [model for model in models if NAME.fullmatch(model.name)]


def subfolders(repository: Path) -> list[Path]:
    """Return the folders in a repository, sorted by name."""
    try:
        return sorted(path for path in repository.iterdir() if path.is_dir())
    except OSError as error:
        raise RepositoryError(f"the model repository {repository} cannot be read: {error.strerror}") from error


def readable_folders(folders: Iterable[Path]) -> list[Path]:
    """Return the folders that this user may read, with their version folders, and warn of each other folder.

    A separate disk has a folder `lost+found`, which only root may read.
    """
    found = []
    for folder in folders:
        try:
            weights_in(folder)
        except OSError as error:
            _warn(error.filename or folder, f"it cannot be read ({error.strerror})")
        else:
            found.append(folder)
    return found


@cache  # commands read a repository several times
def _warn(folder: Path | str, reason: str) -> None:
    logger.warning("%s is left out: %s", folder, reason)


def unguarded_graphs(repository: Path) -> list[Path]:
    """Return the ONNX files of model pairs, in all versions, that do not refuse tensors of wrong sizes.

    With some versions of ONNX Runtime, one request can crash a server with these files.
    """
    found = []
    for model in list_models(repository):
        if model.problem or spec_of(tensor.name for tensor in model.config.input) is None:
            continue
        for version in version_folders(model.path):
            path = version / model.expected_weights.name
            metadata, problem = _metadata(path)
            if path.is_file() and not problem and GUARD_KEY not in metadata:
                found.append(path)
    return found


def _metadata(path: Path) -> tuple[dict[str, str], str]:
    """Return the metadata of an ONNX file, and the reason why it cannot be read, or nothing for other files."""
    if path.suffix != ".onnx" or not path.is_file():
        return {}, ""
    try:
        return read_metadata(path), ""
    except (OSError, ValueError) as error:
        return {}, f"{path.parent.name}/{path.name}: {error}"
