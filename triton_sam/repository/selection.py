"""Which models of a repository can be served: those that have weights, with the models they call."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from triton_sam.errors import RepositoryError
from triton_sam.repository.folder import version_folders, weights_in

logger = logging.getLogger(__name__)

_COMMENT = re.compile(r'(?m)(?:^\s*#.*|#[^"\n]*)$')
_ENSEMBLE = re.compile(r'platform\s*:\s*"ensemble"|\bensemble_scheduling\b')
_STEP = re.compile(r'\bmodel_name\s*:\s*"([^"]+)"')
_STRING = re.compile(r'\b(?:model_name|string_value)\s*:\s*"([^"]*)"')
_PAIR = re.compile(
    r'\bkey\s*:\s*"(?:encoder|decoder)"[\s,]*value\s*:?\s*\{\s*string_value\s*:\s*"([^"]+_(?:encoder|decoder))"'
)
"""What a session model calls."""
_WEIGHTS = re.compile(r'\bdefault_model_filename\s*:\s*"([^"]+)"')
_FAMILY = re.compile(r"(sam[1-9])")
_HAS_INPUT = re.compile(r"\binput\s*[:\[{]")
_HAS_OUTPUT = re.compile(r"\boutput\s*[:\[{]")


@dataclass(frozen=True)
class ModelFolder:
    """One folder of a model repository, as far as starting a server needs to know it."""

    path: Path
    config: str

    @property
    def name(self) -> str:
        """The folder's name, which is the model's."""
        return self.path.name

    @property
    def is_ensemble(self) -> bool:
        """True for a model that only chains others and has no weights of its own."""
        return bool(_ENSEMBLE.search(self.config))

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
        named = _WEIGHTS.search(self.config)
        version = self.versions[-1] if self.versions else self.path / "1"
        return version / (named.group(1) if named else "model.onnx")

    @property
    def config_is_complete(self) -> bool:
        """True when the config names inputs and outputs, so that nothing is left to derive from the weights."""
        return bool(_HAS_INPUT.search(self.config) and _HAS_OUTPUT.search(self.config))

    def dependencies(self, known: Iterable[str]) -> set[str]:
        """Models that this one calls: an ensemble's steps, a session model's pair, known ones in a parameter."""
        strings = _STRING.findall(self.config)
        words = {word for text in strings for word in re.split(r"[\s,]+", text)}
        needed = [*_PAIR.findall(self.config), *(_STEP.findall(self.config) if self.is_ensemble else ())]
        return words.intersection(known).union(needed) - {self.name}


def read_repository(repository: Path) -> dict[str, ModelFolder]:
    """Return the model folders of a repository by name.

    Raises:
        RepositoryError: the repository does not exist or is not a folder.
    """
    if not repository.is_dir():
        raise RepositoryError(f"no model repository at {repository}: name one with --model-repository DIR")
    folders = (path for path in sorted(repository.iterdir()) if path.is_dir() and not path.name.startswith("."))
    models = (ModelFolder(path, _read_config(path)) for path in folders)
    return {model.name: model for model in models if model.config or model.versions}


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
        hint = _hint(models or ["sam2"])
        raise RepositoryError(f"no model in {repository} has weights (there: {_listing(models)}){hint}")
    return usable


def _no_weights(model: ModelFolder) -> str:
    expected = model.expected_weights
    return f"model {model.name!r} has no weights (expected {expected}){_hint([model.name])}"


def _hint(names: Iterable[str]) -> str:
    families = [match.group(1) for match in map(_FAMILY.match, names) if match]
    if not families:
        return ""
    return f": write them with `triton-sam setup {families[0]}` or `python scripts/export_{families[0]}_to_onnx.py`"


def _listing(models: Iterable[str]) -> str:
    return ", ".join(sorted(models)) or "none"


def _read_config(folder: Path) -> str:
    try:
        text = (folder / "config.pbtxt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return _COMMENT.sub("", text)
