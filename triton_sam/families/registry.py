"""The table of families."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import ConfigurationError
from .base import Family
from .tables import DECODER, ENCODER, ModelSpec, encoder_jpeg_name, model_name, preprocess_name, video_name

FAMILIES: dict[str, Family] = {}
"""The registered families by name. Add one with register()."""

TensorNames = tuple[frozenset[str], frozenset[str]]
"""The names of a model's inputs, and those of its outputs."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_EXPORTER = re.compile(r"[\w.]+:\w+")


def register(family: Family) -> Family:
    """Add a family to the table, for commands, clients, exports and downloads.

    Returns:
        The family itself.

    Raises:
        ConfigurationError: the name is taken, or the family's table is inconsistent.
    """
    if family.name in FAMILIES:
        raise ConfigurationError(f"the family {family.name!r} is registered already: give the new family another name")
    if problem := _find_problem(family):
        raise ConfigurationError(f"the family {family.name!r} cannot be registered: {problem}")
    FAMILIES[family.name] = family
    return family


def unregister(name: str) -> None:
    """Remove a family from the table.

    Raises:
        ConfigurationError: there is no such family.
    """
    del FAMILIES[get_family(name).name]


def get_family(name: str) -> Family:
    """Return the family with this name, the ``model_type`` of the clients.

    Raises:
        ConfigurationError: there is no such family.
    """
    try:
        return FAMILIES[name]
    except (KeyError, TypeError):  # TypeError: a list cannot be a key
        known = ", ".join(FAMILIES)
        raise ConfigurationError(f"unknown model type {name!r}: choose one of {known}") from None


def family_of_name(model: str) -> Family | None:
    """Return the family whose name begins a model's or variant's name, for example SAM2 for "sam2.1_large", or None."""
    return next((family for name, family in FAMILIES.items() if model.startswith(name)), None)


def split_model_name(model: str) -> tuple[str, str] | None:
    """Split the name of a model into variant and role; return None if it does not end in a role of any family.

    The longest matching role wins: if "memory_encoder" is a role, then "sam2_memory_encoder" is the memory encoder of
    "sam2", not the encoder of "sam2_memory".
    """
    for role in sorted(roles(), key=len, reverse=True):
        variant = model.removesuffix(model_name("", role))
        if variant and variant != model:
            return variant, role
    return None


def variant_of(model: str) -> str:
    """Return the variant that a model belongs to: its name without the role, or the whole name if it has no role."""
    split = split_model_name(model)
    return model if split is None else split[0]


def spec_of(inputs: Iterable[str]) -> ModelSpec | None:
    """Return the first model of any family that has exactly these inputs, in any order; None if there is none."""
    wanted = set(inputs)
    pairs = (spec for family in FAMILIES.values() for spec in family.models.values())
    others = (spec for family in FAMILIES.values() for spec in family.every_model.values())
    return next((spec for spec in (*pairs, *others) if set(spec.input_names) == wanted), None)


def families_like(family: Family) -> list[Family]:
    """Return the families whose encoder and decoder have the same tensor names, in the order of registration.

    The family itself is among them. If there are others, the family of a model cannot be derived from its tensors.
    """
    return families_with(*(_tensor_names(spec) for spec in (family.encoder, family.decoder)))


def families_with(encoder: TensorNames, decoder: TensorNames) -> list[Family]:
    """Return the families whose encoder and decoder have these inputs and outputs, in the order of registration."""
    return [family for family in FAMILIES.values() if _fits(family.encoder, encoder) and _fits(family.decoder, decoder)]


def tracking_families() -> list[str]:
    """Return the names of the families that follow objects through a video, in the order of registration."""
    return [name for name, family in FAMILIES.items() if family.tracking is not None]


def roles() -> tuple[str, ...]:
    """Return the roles of all models of all families, those of the model pair first."""
    pairs = (role for family in FAMILIES.values() for role in family.models)
    others = (role for family in FAMILIES.values() for role in family.every_model)
    return tuple(dict.fromkeys((*pairs, *others)))


def variant_models(variant: str) -> tuple[str, ...]:
    """Return the names of all models that a variant can have, each after the models that it calls.

    These are the ONNX models of its roles, then the models that encode compressed images, the session model, and the
    video model. No variant has all of them.
    """
    programs = (preprocess_name(variant), encoder_jpeg_name(variant), variant, video_name(variant))
    return (*(model_name(variant, role) for role in roles()), *programs)


def _fits(spec: ModelSpec, names: TensorNames) -> bool:
    inputs, outputs = names
    further = {tensor.name for tensor in spec.further_outputs}
    return (inputs, outputs - further) == _tensor_names(spec)


def _tensor_names(spec: ModelSpec) -> TensorNames:
    return frozenset(spec.input_names), frozenset(spec.output_names)


def _find_problem(family: Family) -> str:
    """Return the first inconsistency in a family's table; an empty string if there is none."""
    sizes = {size.name for size in family.sizes}
    named = {family.default_size, family.random_size, family.quick_size} - {""}
    if not _NAME.fullmatch(family.name):
        return "its name must consist of letters and digits, and start with a letter"
    if missing := {ENCODER, DECODER} - family.models.keys():
        return f"it has no {min(missing)}"
    if wrong := [role for role, spec in family.models.items() if role != spec.role]:
        return f"the model under {wrong[0]!r} has another role"
    files = (*family.checkpoints, *family.fine_tunes)
    if unknown := (named | {checkpoint.size for checkpoint in files}) - sizes:
        return f"it has no size {min(unknown)!r}"
    if family.exporter and not _EXPORTER.fullmatch(family.exporter):
        return f"its exporter {family.exporter!r} must look like package.module:NAME"
    return ""
