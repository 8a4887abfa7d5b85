"""The models that a server has ready, sorted into families and variants by their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..families import FAMILIES, Family, model_name, split_model_name
from ..families.tables import DECODER, ENCODER, ModelSpec


class ServerModels(dict[str, str]):
    """A dict name -> version of all models that a server has ready, with the model pairs among them.

    Args:
        versions: name -> version.
        variants: family -> names of its ready model pairs, the default pair first. Each name is a valid ``model_name``
            for a client whose ``model_type`` is the family.
    """

    def __init__(self, versions: Mapping[str, str], variants: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(versions)
        self.variants = dict(variants)


def sort_models(versions: Mapping[str, str], config_of: Callable[[str], Mapping[str, Any]]) -> ServerModels:
    """Find the model pairs of each family.

    Args:
        versions: name -> version of every ready model.
        config_of: returns the configuration of a model, as the JSON of Triton's HTTP protocol.
    """
    variants: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for encoder in sorted(versions):
        variant, role = split_model_name(encoder) or ("", "")
        decoder = model_name(variant, DECODER)
        if role != ENCODER or decoder not in versions:
            continue
        family = _family(config_of(encoder), config_of(decoder))
        if family is not None:
            variants[family.name].append(variant)
    return ServerModels(
        versions,
        {name: tuple(sorted(found, key=lambda v: (v != name, v))) for name, found in variants.items() if found},
    )


def _family(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> Family | None:
    """Return the family of a model pair by its tensor names, which no two families share; None if no family fits."""
    for family in FAMILIES.values():
        if _fits(encoder, family.encoder) and _fits(decoder, family.decoder):
            return family
    return None


def _fits(config: Mapping[str, Any], spec: ModelSpec) -> bool:
    names = [{tensor["name"] for tensor in config.get(side, ())} for side in ("input", "output")]
    return names == [set(spec.input_names), set(spec.output_names)]
