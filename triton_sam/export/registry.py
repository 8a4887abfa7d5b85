"""Find and use the exporter of a family. An exporter is imported when it is first needed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._common.progress import Progress
from ..errors import CheckpointError, ConfigurationError
from ..families import FAMILIES, get_family
from .exporter import Exporter
from .settings import Settings

if TYPE_CHECKING:
    from ..families import Family
    from .filled import FilledExporter
    from .pipeline import Exported
    from .stored import Stored
    from .templates import Template


def exporter(family: str) -> Exporter:
    """Return the exporter in a family's table."""
    module, _, name = get_family(family).exporter.partition(":")
    if not name:
        raise ConfigurationError(f"{family} cannot be exported: its table names no exporter")
    found = getattr(import_module(module), name, None)
    if not isinstance(found, Exporter):
        raise ConfigurationError(f"{family} cannot be exported: {name!r} in {module} is not an exporter")
    return found


def export(family: str, settings: Settings) -> Exported:
    """Export a checkpoint, or random weights, of any family into a model repository.

    All models of the family appear at once, or none does: a failure leaves the old files unchanged.
    """
    with contextlib.ExitStack() as stack:
        chosen = _filled(stack, family, settings) or exporter(family)
        # Imported after the exporter, so that the error for a missing package is one line.
        from .pipeline import export_models

        return export_models(chosen, settings)


def check_packages(family: str, settings: Settings) -> None:
    """Check before a download that the packages for an export are installed."""
    from .filled import usable_templates

    table = get_family(family)
    if not usable_templates(table, settings.complete(table)):
        exporter(family)


def _filled(stack: contextlib.ExitStack, family: str, settings: Settings) -> Exporter | None:
    """Return the exporter that fills the template for the weights; None if there is no template for them.

    Random weights come from the official model, so they need torch; the template saves the trace.
    """
    from .filled import usable_templates

    table = get_family(family)
    settings = settings.complete(table)
    found = usable_templates(table, settings)
    if not found:
        return None
    if settings.checkpoint is None:
        problem, chosen = _fit(table, found, _random_tensors(family, settings), settings)
        return None if problem else chosen
    from .checkpoint import checkpoint_errors, open_checkpoint

    hint = f"triton-sam download {family}"
    checkpoint = _filled_exporter(table).place(settings.checkpoint)
    note = Progress(settings.variant, settings.progress).line
    tensors = stack.enter_context(open_checkpoint(checkpoint, hint, note))
    with checkpoint_errors(checkpoint, hint):
        problem, chosen = _fit(table, found, tensors, settings)
        if problem:
            raise CheckpointError(f"{settings.checkpoint} does not fit {problem}; {_advice(tensors, settings)}")
    return chosen


def _fit(
    table: Family, found: Sequence[Template], tensors: Mapping[str, Stored], settings: Settings
) -> tuple[str, FilledExporter]:
    """Return the exporter of the template that fits the tensors best, and the mismatch ("" if all fit)."""
    from .templates import misfit

    kind = _filled_exporter(table)
    compared = []
    for template in found:
        official = kind.official(tensors, template, settings)
        compared.append((misfit(kind.wanted(template, settings), official), template, official))
    (absent, surplus, others), nearest, official = min(compared, key=lambda each: sum(map(len, each[0])))
    problem = (
        f"{table.label} {nearest.size}: {len(absent)} tensors missing, {len(surplus)} too many, {len(others)} with "
        f"another shape (for example {(absent + surplus + others)[0]})"
        if absent + surplus + others
        else ""
    )
    return problem, kind(table, nearest, official)


def _advice(tensors: Mapping[str, Stored], settings: Settings) -> str:
    """Return the end of the error for a checkpoint that does not fit: its actual family and size, if any."""
    from .templates import templates

    for table in FAMILIES.values():
        for template in templates(table):
            with contextlib.suppress(ValueError):
                if not _fit(table, [template], tensors, replace(settings, video=False))[0]:
                    return f"it is a checkpoint of {table.name} {template.size}"
    return "models of other architectures need --trace, and PyTorch"


def _filled_exporter(table: Family) -> type[FilledExporter]:
    module, _, name = table.filled_exporter.partition(":")
    found: type[FilledExporter] = getattr(import_module(module), name)
    return found


def _random_tensors(family: str, settings: Settings) -> dict[str, Stored]:
    """Return the tensors of the official model with random weights."""
    from .pipeline import build
    from .stored import of_array

    official = exporter(family)
    model = build(official, official.prepare(settings))
    return {name: of_array(tensor.detach().numpy()) for name, tensor in official.state(model).items()}


def official(
    family: str,
    checkpoint: Path | None,
    model: str | None,
    random_seed: int | None,
    image_size: int | None = None,
) -> tuple[Exporter, Any]:
    """Return the exporter of a family, and the official model with the same weights as export(); see Exporter.load().

    The exporter wraps the model in the official predictors, for example ``exporter.reference(model)``.
    """
    chosen = exporter(family)
    return chosen, chosen.load(checkpoint, model, image_size=image_size, random_seed=random_seed)
