"""The SAM families by name. `new_family.md` in this folder explains how to add one.

A family is a value of the dataclass in `base`: models by role, tensors, sizes, checkpoints and options, as data and
pure functions. `registry` is the table of families, `tracking` has the models for videos, `concepts` those for
words.
"""

from .base import Family
from .edgetam import EDGETAM
from .mobilesam import MOBILESAM
from .registry import (
    FAMILIES,
    families_like,
    families_with,
    family_of_name,
    get_family,
    register,
    roles,
    spec_of,
    split_model_name,
    tracking_families,
    unregister,
    variant_models,
    variant_of,
)
from .sam1 import SAM1
from .sam2 import SAM2
from .sam3 import SAM3
from .samhq import SAMHQ
from .tables import model_name, pair_names

for _family in (SAM1, SAM2, SAM3, MOBILESAM, EDGETAM, SAMHQ):
    register(_family)

PACKAGED = tuple(FAMILIES)
"""The families of this package: the only ones that the processes of session models support."""

__all__ = [
    "FAMILIES",
    "PACKAGED",
    "Family",
    "families_like",
    "families_with",
    "family_of_name",
    "get_family",
    "model_name",
    "pair_names",
    "register",
    "roles",
    "spec_of",
    "split_model_name",
    "tracking_families",
    "unregister",
    "variant_models",
    "variant_of",
]
