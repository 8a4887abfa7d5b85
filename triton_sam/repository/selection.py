"""Choose the models that a server loads: models with weights, and the models that they call."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import RepositoryError
from ..families import Family, family_of_name, pair_names, split_model_name, variant_models
from ..families.sam2 import SAM2
from ..families.tables import video_name
from .folder import RepositoryModel, list_models

logger = logging.getLogger(__name__)

NO_WEIGHTS = "it has no weights"


def read_repository(repository: Path) -> dict[str, RepositoryModel]:
    """Return the models of list_models() by name, without folders that hold neither a configuration nor a version."""
    return {model.name: model for model in list_models(repository) if model.has_config or model.versions}


def select_models(repository: Path, wanted: Sequence[str] | None) -> list[RepositoryModel]:
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
        if not models[name].has_content:
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


def unloadable(models: Mapping[str, RepositoryModel]) -> dict[str, str]:
    """Return the models that cannot be loaded, each with the reason.

    A model cannot be loaded if it has no weights, or if it calls a model that cannot be loaded.
    """
    reasons = {name: NO_WEIGHTS for name, model in models.items() if not model.has_content}
    return without_dependents(models, reasons)


def without_dependents(models: Mapping[str, RepositoryModel], reasons: Mapping[str, str]) -> dict[str, str]:
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


def _all_loadable(repository: Path, models: dict[str, RepositoryModel]) -> list[RepositoryModel]:
    reasons = unloadable(models)
    for name, reason in sorted(reasons.items()):
        logger.info("%s is left out: %s", name, reason)
    usable = [model for name, model in models.items() if name not in reasons]
    if not usable:
        hint = _hint(models or [SAM2.name])
        raise RepositoryError(f"no model in {repository} has weights (available: {_listing(models)}){hint}")
    return usable


def _no_weights(model: RepositoryModel) -> str:
    expected = model.expected_weights
    return f"model {model.name!r} has no weights (expected {expected}){_hint([model.name])}"


def _hint(names: Iterable[str]) -> str:
    arguments = next(filter(None, map(setup_arguments, names)), None)
    return f": write them with `triton-sam setup {arguments}` or `triton-sam export {arguments}`" if arguments else ""


def setup_arguments(model: str) -> str | None:
    """Return the arguments of setup and export for a model; None for a model of no family."""
    family = family_of_name(model)
    return None if family is None else f"{family.name}{_option_for(model, family)}"


def _option_for(model: str, family: Family) -> str:
    """Return the option of setup and export for a model, after a space; empty if they always write the model."""
    _, role = split_model_name(model) or (model, "")
    if role in family.concepts:
        return " --concepts"
    tracks = family.tracking is not None and (role in family.tracking.models or model.endswith(video_name("")))
    return " --video" if tracks else ""


def _listing(models: Iterable[str]) -> str:
    return ", ".join(sorted(models)) or "none"
