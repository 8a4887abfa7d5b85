"""The names of a family's models in Triton: VARIANT_ROLE, for example "sam2_encoder"."""

from __future__ import annotations

from .tables import DECODER, ENCODER


def model_name(variant: str, role: str) -> str:
    """Return the name of a variant's model in Triton, for example "sam2.1_large_encoder"."""
    return f"{variant}_{role}"


def pair_names(variant: str) -> tuple[str, str]:
    """Return the names of a variant's encoder and decoder."""
    return model_name(variant, ENCODER), model_name(variant, DECODER)


def video_name(variant: str) -> str:
    """Return the name of a variant's video model in Triton, for example "sam2_video"."""
    return f"{variant}_video"


def preprocess_name(variant: str) -> str:
    """Return the name of the model that turns images into the encoder's input, for example "sam2_preprocess"."""
    return f"{variant}_preprocess"


def encoder_jpeg_name(variant: str) -> str:
    """Return the name of the ensemble of that model and the encoder, for example "sam2_encoder_jpeg"."""
    return f"{variant}_encoder_jpeg"


def split_name(model: str, roles: tuple[str, ...]) -> tuple[str, str] | None:
    """Split the name of a model into variant and role; return None if the name ends in none of the roles.

    The longest matching role wins: if "memory_encoder" is a role, then "sam2_memory_encoder" is the memory encoder of
    "sam2" and not the encoder of "sam2_memory".
    """
    for role in sorted(roles, key=len, reverse=True):
        variant = model.removesuffix(model_name("", role))
        if variant and variant != model:
            return variant, role
    return None
