"""The exporters by family, with one signature, for commands. Each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..families import get_family
from .options import DEFAULT_SIZES, SIZES

if TYPE_CHECKING:
    from .pipeline import Exported
    from .reference import Reference


def exporter(family: str) -> Callable[..., Exported]:
    """Return the export function of a family: (checkpoint, model, output_dir, name=..., ...) -> Exported.

    Raises:
        ConfigurationError: there is no such family.
        MissingDependencyError: a package that it needs is missing.
    """
    get_family(family)
    if family == "sam1":
        from .sam1.recipe import export_sam1

        return export_sam1
    if family == "sam3":
        from .sam3.recipe import export_sam3

        return export_sam3
    from .sam2.recipe import export_sam2

    return export_sam2


def export(
    family: str,
    checkpoint: Path | None,
    model: str | None,
    output_dir: Path,
    *,
    name: str | None = None,
    **options: Any,
) -> Exported:
    """Export a checkpoint, or random weights, of any family.

    Args:
        family: "sam1", "sam2" or "sam3".
        checkpoint: file (SAM3: file or folder), or None with the option ``random_seed``.
        model: configuration: SAM1 a size, SAM2 a configuration's name or file, SAM3 a size; None: by the checkpoint.
        output_dir: the model repository.
        name: variant; None: the family's name.
        options: image_size, device, precision, random_seed, half_storage, version, progress of the exporter.

    Raises:
        SamError: see the exporter of the family.
    """
    return exporter(family)(checkpoint, model, output_dir, name=name or family, **options)


def reference(family: str, checkpoint: Path | None, model: str | None, random_seed: int | None) -> Reference:
    """Build the official predictor of a family with the weights that export() takes. Arguments as there.

    Raises:
        SamError: see load_model() of the family.
    """
    from .sam1.reference import Sam1Reference
    from .sam2.reference import Sam2Reference
    from .sam3.reference import Sam3Reference

    get_family(family)
    if family == "sam1":
        from .sam1.model import load_model as load_sam1

        return Sam1Reference(load_sam1(checkpoint, model, random_seed=random_seed))
    if family == "sam3":
        from .sam3.model import load_model as load_sam3

        return Sam3Reference(load_sam3(checkpoint, model, random_seed=random_seed))
    from .sam2.recipe import load_model as load_sam2

    return Sam2Reference(load_sam2(checkpoint, model, random_seed=random_seed))


def parameters(family: str, size: str) -> int:
    """Return how many parameters the official model of a size has.

    Raises:
        ConfigurationError: the family has no such size.
        MissingDependencyError: a package that it needs is missing.
    """
    model = random_model(family, size)
    exporter(family)  # before torch: says in one line what is missing
    import torch

    # Nothing need be drawn to be counted, but SAM2's backbone reads numbers off tensors while it is built.
    with torch.device("cpu" if family == "sam2" else "meta"):
        built = _build(family, model)
    return sum(parameter.numel() for parameter in built.parameters())


def _build(family: str, model: str) -> Any:
    if family == "sam1":
        from .sam1.model import build_model as build_sam1

        return build_sam1(model)
    if family == "sam3":
        from .sam3.model import build_model as build_sam3

        return build_sam3(model)
    from .sam2.model import build_model as build_sam2

    return build_sam2(model)


def random_model(family: str, size: str | None) -> str:
    """Return the ``model`` argument of export() for random weights of a size; None: the family's default.

    Raises:
        ConfigurationError: the family has no such size.
    """
    chosen = size or DEFAULT_SIZES[family]
    if chosen not in SIZES[family]:
        raise ConfigurationError(f"{family} has no size {chosen!r}: one of {', '.join(SIZES[family])}")
    return model_of_size(family, chosen)


def model_of_size(family: str, size: str) -> str:
    """Return the ``model`` argument of export() that stands for a size of SIZES."""
    if family != "sam2":
        return size
    from .sam2.model import CONFIG_OF_SIZE

    return CONFIG_OF_SIZE[size]
