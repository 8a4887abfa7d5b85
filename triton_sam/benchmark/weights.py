"""The measured models: those of a repository, the demo model, random weights, or a checkpoint."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .._common.bundle import bundled
from ..errors import ConfigurationError, MissingDependencyError, RepositoryError
from ..families import Family, get_family
from ..repository.folder import list_models
from ..sessions.configs import write_programs

if TYPE_CHECKING:
    from ..export.reference import ConceptReference, Reference

RANDOM_SEED = 0
BUILT_IN = "micro"
"""The value of --weights for the demo model of a family, or for its fastest size with random weights."""


@dataclass(frozen=True)
class Weights:
    """A pair of models in a repository, and the settings to build the official model with the same weights.

    Args:
        name: variant of the pair; None: the family's name.
        checkpoint: file with the weights; None: random or unknown weights.
        config: configuration of the official model; None: chosen by the checkpoint's name.
    """

    repository: Path
    name: str | None
    files: Mapping[str, Path]
    metadata: Mapping[str, str] = field(default_factory=dict)
    checkpoint: Path | None = None
    config: str | None = None
    seed: int | None = None

    def describe(self) -> str:
        """Return one line about the weights."""
        config = self.metadata.get("triton_sam.config", "unknown")
        made_of = self.metadata.get("triton_sam.checkpoint", "unknown weights")
        return made_of if made_of == config else f"{config}, {made_of}"

    def reference(self, family: str) -> Reference:
        """Build the official predictor."""
        model = self._official_model(family)
        from ..export import registry

        exporter, built = registry.official(family, self.checkpoint, model, self.seed)
        return exporter.reference(built)

    def concept_reference(self, family: str) -> ConceptReference:
        """Build the official detector of words; see reference()."""
        model = self._official_model(family)
        from ..export import registry
        from ..export.settings import Settings

        exporter, built = registry.official(family, self.checkpoint, model, self.seed)
        settings = Settings(Path(), checkpoint=self.checkpoint, model=model, random_seed=self.seed, concepts=True)
        return exporter.concept_reference(built, settings)

    def _official_model(self, family: str) -> str | None:
        if self.checkpoint is None and self.seed is None:
            raise MissingDependencyError(f"the checkpoint of {self.describe()} is not here: give --weights FILE")
        return get_family(family).model_of_config(self.config) if self.config else None


def find_weights(family: str, repository: Path, name: str | None, *, concepts: bool = False) -> Weights | None:
    """Return the newest version of a family's models in a repository; None without weights."""
    spec = get_family(family)
    models = {model.name: model for model in list_models(repository)}
    files: dict[str, Path] = {}
    metadata: dict[str, str] = {}
    for role, model_spec in spec.models_for(video=False, concepts=concepts).items():
        model = models.get(spec.model_name(role, name))
        if model is None or not model.has_weights:
            return None
        files[role] = repository / model.name / str(model.versions[-1]) / model_spec.filename
        metadata = metadata or model.metadata
    made_of, config = metadata.get("triton_sam.checkpoint", ""), metadata.get("triton_sam.config")
    seed = re.fullmatch(r"random seed (\d+)", made_of)
    if seed:
        return Weights(repository, name, files, metadata, None, config, int(seed[1]))
    return Weights(repository, name, files, metadata, _checkpoint(made_of), None)


def make_weights(family: str, text: str, folder: Path, progress: bool, *, concepts: bool = False) -> Weights:
    """Create a repository of one pair with its session model."""
    if text == BUILT_IN and get_family(family).built_in:
        _copy_built_in(get_family(family), folder)
    else:
        _export(family, text, folder, progress, concepts)
    write_programs(folder, get_family(family), video=False)
    weights = find_weights(family, folder, None)
    if weights is None:
        raise RepositoryError(f"the export of {text} left no models in {folder}")
    if weights.seed is None and text != BUILT_IN:
        return Weights(folder, None, weights.files, weights.metadata, Path(text), None)
    return weights


def _copy_built_in(family: Family, folder: Path) -> None:
    for role in family.models:
        source = bundled("model_repository") / family.model_name(role)
        (folder / source.name).mkdir(parents=True)
        shutil.copytree(source / "1", folder / source.name / "1")
        shutil.copy2(source / "config.pbtxt", folder / source.name)


def _export(family: str, text: str, folder: Path, progress: bool, concepts: bool) -> None:
    from ..export import registry
    from ..export.settings import Settings

    kind, _, size = text.partition(":")
    if text == BUILT_IN:
        kind, size = "random", get_family(family).quick_size
    if kind == "random":
        model = get_family(family).find_size(size).model
        random = Settings(folder, model=model, random_seed=RANDOM_SEED, progress=progress, concepts=concepts)
        registry.export(family, random)
        return
    if not Path(text).exists():
        raise ConfigurationError(f"--weights {text}: no such file; or {BUILT_IN}, or random:SIZE")
    registry.export(family, Settings(folder, checkpoint=Path(text), progress=progress, concepts=concepts))


def _checkpoint(name: str) -> Path | None:
    """Return the file of a downloaded checkpoint; None if it does not exist."""
    folders = (Path("checkpoints"), bundled("checkpoints"))
    files = [folder / f"{name}{ending}" for folder in folders for ending in (".pt", ".pth")]
    return next((file for file in files if file.is_file()), None)
