"""The table of families."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import ConfigurationError
from .base import Family
from .names import split_name
from .tables import DECODER, ENCODER, ModelSpec

FAMILIES: dict[str, Family] = {}
"""The registered families by name; use register() to add one."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_EXPORTER = re.compile(r"[\w.]+:\w+")


def register(family: Family) -> Family:
    """Add a family to the table, from where commands, clients, exports and downloads take it.

    Returns:
        The family itself.

    Raises:
        ConfigurationError: the name is taken, or the family's table contradicts itself.
    """
    if family.name in FAMILIES:
        raise ConfigurationError(f"there is a family {family.name!r} already: give the new one another name")
    if fault := _fault(family):
        raise ConfigurationError(f"the family {family.name!r} cannot be registered: {fault}")
    FAMILIES[family.name] = family
    return family


def unregister(name: str) -> None:
    """Take a family out of the table again.

    Raises:
        ConfigurationError: there is no such family.
    """
    del FAMILIES[get_family(name).name]


def get_family(name: str) -> Family:
    """Return the family of a ``model_type``.

    Raises:
        ConfigurationError: there is no such family.
    """
    try:
        return FAMILIES[name]
    except KeyError:
        known = ", ".join(FAMILIES)
        raise ConfigurationError(f"unknown model type {name!r}: one of {known}") from None


def family_of_name(model: str) -> Family | None:
    """Return the family whose name a model's or a variant's name begins with, for example SAM2 for "sam2.1_large"."""
    return next((family for name, family in FAMILIES.items() if model.startswith(name)), None)


def split_model_name(model: str) -> tuple[str, str] | None:
    """Return variant and role of a model's name; None when the name ends in no role of any family."""
    return split_name(model, roles())


def variant_of(model: str) -> str:
    """Return the variant that a model belongs to: its name without the role, if it ends in one."""
    split = split_model_name(model)
    return model if split is None else split[0]


def spec_of(inputs: Iterable[str]) -> ModelSpec | None:
    """Return the first model of any family that has these inputs, in any order; None when there is none."""
    wanted = set(inputs)
    specs = (spec for family in FAMILIES.values() for spec in family.models.values())
    return next((spec for spec in specs if set(spec.input_names) == wanted), None)


def roles() -> tuple[str, ...]:
    """Return the roles that models have in any family, the pair first."""
    return tuple(dict.fromkeys(role for family in FAMILIES.values() for role in family.models))


def _fault(family: Family) -> str:
    """Return the first contradiction in a family's table; empty when there is none."""
    sizes = {size.name for size in family.sizes}
    named = {family.default_size, family.random_size, family.quick_size} - {""}
    if not _NAME.fullmatch(family.name):
        return "its name must be letters and digits, a letter first"
    if missing := {ENCODER, DECODER} - family.models.keys():
        return f"it has no {min(missing)}"
    if wrong := [role for role, spec in family.models.items() if role != spec.role]:
        return f"the model under {wrong[0]!r} has another role"
    if unknown := (named | {checkpoint.size for checkpoint in family.checkpoints}) - sizes:
        return f"it has no size {min(unknown)!r}"
    if family.exporter and not _EXPORTER.fullmatch(family.exporter):
        return f"its exporter {family.exporter!r} must look like package.module:NAME"
    return ""
