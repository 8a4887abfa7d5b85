"""Choose the models that a server loads: models with weights, and the models that they call."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from ..errors import RepositoryError
from ..families import Family, family_of_name, roles, split_model_name, variant_models
from ..families.sam2 import SAM2
from ..families.tables import ENCODER, video_name
from .config import parse_config
from .folder import readable_folders, subfolders, version_folders, weights_in
from .names import ALIAS_KEY, CONFIG_NAME, NAME, name_problem, pair_names

logger = logging.getLogger(__name__)

NO_WEIGHTS = "it has no weights"


@dataclass(frozen=True)
class ModelFolder:
    """One folder of a model repository, with the facts for starting a server.

    Args:
        config: the parsed config.pbtxt; an empty message if there is none, or if it cannot be parsed.
        problem: the reason why the config.pbtxt cannot be parsed, in one line; empty without one. A folder with a
            problem is still loaded, so that the server itself reports why it refuses the model.
    """

    path: Path
    config: Any = field(default_factory=ModelConfig, compare=False)
    problem: str = ""

    @property
    def name(self) -> str:
        """The name of the folder and of the model."""
        return self.path.name

    @property
    def has_config(self) -> bool:
        """True if there is a non-empty config.pbtxt."""
        return bool(self.problem) or self.config.ByteSize() > 0

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
    def versions(self) -> list[Path]:
        """The version folders, in ascending order of the versions."""
        return version_folders(self.path)

    @property
    def has_weights(self) -> bool:
        """True if there is something to load, see weights_in(). An ensemble needs only a version folder."""
        return bool(self.versions if self.is_ensemble else weights_in(self.path))

    @property
    def expected_weights(self) -> Path:
        """The path where Triton looks for the weights, in the newest version."""
        version = self.versions[-1] if self.versions else self.path / "1"
        return version / (self.config.default_model_filename or "model.onnx")

    @property
    def config_is_complete(self) -> bool:
        """True if the config lists inputs and outputs, so that the server need not derive them from the weights."""
        return bool(self.config.input and self.config.output)

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


def read_repository(repository: Path) -> dict[str, ModelFolder]:
    """Return the model folders of a repository by name.

    Folders that this user may not read, or with invalid names, are left out with a warning.
    """
    if not repository.is_dir():
        raise RepositoryError(f"no model repository at {repository}: give one with --model-repository DIR")
    folders = (path for path in subfolders(repository) if not path.name.startswith("."))
    models = [_read_folder(path) for path in readable_folders(folders)]
    return {model.name: model for model in models if (model.has_config or model.versions) and _has_valid_name(model)}


def _has_valid_name(model: ModelFolder) -> bool:
    """Return whether a model can be served under the name of its folder; if not, log one line."""
    if NAME.fullmatch(model.name):
        return True
    logger.warning("%s is left out: %s", model.path, name_problem(model.name))
    return False


def select_models(repository: Path, wanted: Sequence[str] | None) -> list[ModelFolder]:
    """Return the models to load: the wanted models and the models that they call, or all loadable models.

    Args:
        wanted: names of models or variants; None for all. A session model has the name of its variant, which means the
            session model and the video model, with the models that they call.
    """
    models = read_repository(repository)
    if wanted is None:
        return _all_loadable(repository, models)
    loadable = models.keys() - unloadable(models).keys()
    names: list[str] = []
    for name in wanted:
        found = models_of_variant(name, loadable, models)
        if name in models:  # the session model of an alias does not call the pair of its own name
            found = [name, *(each for each in found if each in {*pair_names(name), video_name(name)})]
        names += found or [name]
    names = list(dict.fromkeys(names))
    for name in names:  # dependencies are appended during the loop
        if name not in models:
            raise RepositoryError(f"no model {name!r} in {repository} (available: {_listing(models)}){_hint([name])}")
        if not models[name].has_weights:
            raise RepositoryError(_no_weights(models[name]))
        names += sorted(models[name].dependencies(models).difference(names))
    return [models[name] for name in names]


def models_of_variant(name: str, loadable: Collection[str], known: Collection[str]) -> list[str]:
    """Return a variant's models in a repository, each after the models that it calls; for a model, its name.

    The list is empty if the repository has none of them.

    Args:
        known: the loadable models, and models that cannot be loaded. The list always includes the model pair if it is
            known, because a variant does not work without it.
    """
    pair = pair_names(name)
    found = [each for each in variant_models(name) if each in loadable or (each in pair and each in known)]
    return found or ([name] if name in known else [])


def unloadable(models: Mapping[str, ModelFolder]) -> dict[str, str]:
    """Return the models that cannot be loaded, each with the reason.

    A model cannot be loaded if it has no weights, or if it calls a model that cannot be loaded.
    """
    reasons = {name: NO_WEIGHTS for name, model in models.items() if not model.has_weights}
    return without_dependents(models, reasons)


def without_dependents(models: Mapping[str, ModelFolder], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the models that cannot be loaded, each with the reason: those in `reasons` and their callers."""
    found = dict(reasons)
    previous = -1
    # Repeat, because other models may call each new one, for example an alias of an alias.
    while previous < len(found):
        previous = len(found)
        for name in sorted(models.keys() - found.keys()):
            missing = models[name].dependencies(models) - (models.keys() - found.keys())
            if missing:
                found[name] = f"it calls {', '.join(sorted(missing))}, which {_why(missing, found)}"
    return found


def _why(missing: Collection[str], reasons: Mapping[str, str]) -> str:
    weightless = all(reasons.get(name, NO_WEIGHTS) == NO_WEIGHTS for name in missing)
    if not weightless:
        return "cannot be loaded"
    return "has no weights here" if len(missing) == 1 else "have no weights here"


def _all_loadable(repository: Path, models: dict[str, ModelFolder]) -> list[ModelFolder]:
    reasons = unloadable(models)
    for name, reason in sorted(reasons.items()):
        logger.info("%s is left out: %s", name, reason)
    usable = [model for name, model in models.items() if name not in reasons]
    if not usable:
        hint = _hint(models or [SAM2.name])
        raise RepositoryError(f"no model in {repository} has weights (available: {_listing(models)}){hint}")
    return usable


def _no_weights(model: ModelFolder) -> str:
    expected = model.expected_weights
    return f"model {model.name!r} has no weights (expected {expected}){_hint([model.name])}"


def _hint(names: Iterable[str]) -> str:
    for name in names:
        family = family_of_name(name)
        if family is not None:
            arguments = f"{family.name}{_option_for(name, family)}"
            return f": write them with `triton-sam setup {arguments}` or `triton-sam export {arguments}`"
    return ""


def _option_for(model: str, family: Family) -> str:
    """Return the option of setup and export for a model, after a space; empty if they always write the model."""
    _, role = split_model_name(model) or (model, "")
    if role in family.concepts:
        return " --concepts"
    tracks = family.tracking is not None and (role in family.tracking.models or model.endswith(video_name("")))
    return " --video" if tracks else ""


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
