"""The SAM families by name."""

from __future__ import annotations

from ..errors import ConfigurationError
from .base import Family
from .sam1 import Sam1
from .sam2 import Sam2
from .sam3 import Sam3

FAMILIES: dict[str, Family] = {family.name: family for family in (Sam1(), Sam2(), Sam3())}


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


__all__ = ["FAMILIES", "Family", "get_family"]
