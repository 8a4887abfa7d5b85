"""The names that a family's models have in Triton: a variant's name with the role behind it."""

from __future__ import annotations

from .tables import DECODER, ENCODER


def model_name(variant: str, role: str) -> str:
    """Return the name in Triton of a variant's model, for example "sam2.1_large_encoder"."""
    return f"{variant}_{role}"


def pair_names(variant: str) -> tuple[str, str]:
    """Return the names of a variant's encoder and decoder."""
    return model_name(variant, ENCODER), model_name(variant, DECODER)


def split_name(model: str, roles: tuple[str, ...]) -> tuple[str, str] | None:
    """Return variant and role of a model's name; None when it ends in none of the roles.

    The longest role counts: with the role "memory_encoder", "sam2_memory_encoder" is not the encoder of "sam2_memory".
    """
    for role in sorted(roles, key=len, reverse=True):
        variant = model.removesuffix(model_name("", role))
        if variant and variant != model:
            return variant, role
    return None
