"""Which models of a repository can be served: those that have weights, with the models they call."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from ..errors import RepositoryError
from ..families import family_of_name, roles, split_model_name
from ..families.sam2 import Sam2
from .config import parse_config
from .folder import version_folders, weights_in
from .names import CONFIG_NAME

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFolder:
    """One folder of a model repository, as far as starting a server needs to know it.

    Args:
        path: the folder.
        config: its config.pbtxt, parsed; an empty one where there is none, or where it cannot be parsed.
        problem: why the config.pbtxt cannot be parsed, one line; empty when nothing is wrong. The folder counts all the
            same, so that the server itself says why it refuses the model.
    """

    path: Path
    config: Any = field(default_factory=ModelConfig, compare=False)
    problem: str = ""

    @property
    def name(self) -> str:
        """The folder's name, which is the model's."""
        return self.path.name

    @property
    def has_config(self) -> bool:
        """True when there is a config.pbtxt that says something."""
        return bool(self.problem) or self.config.ByteSize() > 0

    @property
    def is_ensemble(self) -> bool:
        """True for a model that only chains others and has no weights of its own."""
        return self.config.platform == "ensemble" or bool(self.config.HasField("ensemble_scheduling"))

    @property
    def versions(self) -> list[Path]:
        """The version folders, lowest first."""
        return version_folders(self.path)

    @property
    def has_weights(self) -> bool:
        """True when there is something to load, see weights_in(); of an ensemble that is a version folder alone."""
        return bool(self.versions if self.is_ensemble else weights_in(self.path))

    @property
    def expected_weights(self) -> Path:
        """Where Triton would look for the weights: in the newest version."""
        version = self.versions[-1] if self.versions else self.path / "1"
        return version / (self.config.default_model_filename or "model.onnx")

    @property
    def config_is_complete(self) -> bool:
        """True when the config names inputs and outputs, so that nothing is left to derive from the weights."""
        return bool(self.config.input and self.config.output)

    def dependencies(self, known: Iterable[str]) -> set[str]:
        """Models that this one calls: an ensemble's steps, a session model's pair, known ones in a parameter."""
        steps = {step.model_name for step in self.config.ensemble_scheduling.step}
        values = {key: parameter.string_value for key, parameter in self.config.parameters.items()}
        words = {word for text in values.values() for word in re.split(r"[\s,]+", text)}
        called = {value for key, value in values.items() if key in roles() and split_model_name(value)}
        return (words.intersection(known) | called | steps) - {self.name}


def read_repository(repository: Path) -> dict[str, ModelFolder]:
    """Return the model folders of a repository by name.

    Raises:
        RepositoryError: the repository does not exist or is not a folder.
    """
    if not repository.is_dir():
        raise RepositoryError(f"no model repository at {repository}: name one with --model-repository DIR")
    folders = (path for path in sorted(repository.iterdir()) if path.is_dir() and not path.name.startswith("."))
    models = map(_read_folder, folders)
    return {model.name: model for model in models if model.has_config or model.versions}


def select_models(repository: Path, wanted: Sequence[str] | None) -> list[ModelFolder]:
    """Return the models to load: all that have weights, or the wanted ones with the models they call.

    Raises:
        RepositoryError: no such repository or model, or a wanted model has no weights.
    """
    models = read_repository(repository)
    if wanted is None:
        return _everything_with_weights(repository, models)
    names = list(dict.fromkeys(wanted))
    for name in names:  # grows while it is walked: dependencies of dependencies count too
        if name not in models:
            raise RepositoryError(f"no model {name!r} in {repository} (there: {_listing(models)})")
        if not models[name].has_weights:
            raise RepositoryError(_no_weights(models[name]))
        names += sorted(models[name].dependencies(models).difference(names))
    return [models[name] for name in names]


def unloadable(models: Mapping[str, ModelFolder]) -> dict[str, str]:
    """Return why models cannot be loaded, by name: they have no weights, or what they call cannot be loaded."""
    reasons = {name: "it has no weights" for name, model in models.items() if not model.has_weights}
    before = -1
    while before < len(reasons):  # what is left out leaves others out, an alias of an alias for example
        before = len(reasons)
        for name in sorted(models.keys() - reasons.keys()):
            missing = models[name].dependencies(models) - (models.keys() - reasons.keys())
            if missing:
                reasons[name] = f"it calls {', '.join(sorted(missing))}, which has no weights here"
    return reasons


def _everything_with_weights(repository: Path, models: dict[str, ModelFolder]) -> list[ModelFolder]:
    reasons = unloadable(models)
    for name, reason in sorted(reasons.items()):
        logger.info("%s is left out: %s", name, reason)
    usable = [model for name, model in models.items() if name not in reasons]
    if not usable:
        hint = _hint(models or [Sam2.name])
        raise RepositoryError(f"no model in {repository} has weights (there: {_listing(models)}){hint}")
    return usable


def _no_weights(model: ModelFolder) -> str:
    expected = model.expected_weights
    return f"model {model.name!r} has no weights (expected {expected}){_hint([model.name])}"


def _hint(names: Iterable[str]) -> str:
    family = next(filter(None, map(family_of_name, names)), None)
    if family is None:
        return ""
    script = f"python {family.export_script}" if family.export_script else f"triton-sam export {family.name}"
    return f": write them with `triton-sam setup {family.name}` or `{script}`"


def _listing(models: Iterable[str]) -> str:
    return ", ".join(sorted(models)) or "none"


def _read_folder(path: Path) -> ModelFolder:
    try:
        text = (path / CONFIG_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ModelFolder(path)
    try:
        return ModelFolder(path, parse_config(text))
    except RepositoryError as error:
        return ModelFolder(path, problem=f"{CONFIG_NAME}: {error}")
