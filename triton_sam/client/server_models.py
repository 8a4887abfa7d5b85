"""The models that a server has ready, sorted into families and variants by their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..families import FAMILIES, Family, model_name, split_model_name
from ..families.sam2 import Sam2
from ..families.tables import DECODER, ENCODER, ModelSpec
from ..repository.names import CHECKPOINT_KEY


class ServerModels(dict[str, str]):
    """A dict name -> version of all models that a server has ready, with the model pairs among them.

    Args:
        versions: name -> version.
        variants: family -> names of its ready model pairs, the default pair first. Each name is a valid ``model_name``
            for a client whose ``model_type`` is the family.
        demo: names of the model pairs that have the weights of the demo model.
    """

    def __init__(
        self, versions: Mapping[str, str], variants: Mapping[str, tuple[str, ...]], demo: frozenset[str]
    ) -> None:
        super().__init__(versions)
        self.variants = dict(variants)
        self.demo = demo


def sort_models(versions: Mapping[str, str], config_of: Callable[[str], Mapping[str, Any]]) -> ServerModels:
    """Find the model pairs of each family.

    Args:
        versions: name -> version of every ready model.
        config_of: returns the configuration of a model, as the JSON of Triton's HTTP protocol.
    """
    variants: dict[str, list[str]] = {name: [] for name in FAMILIES}
    demo = set()
    for encoder in sorted(versions):
        variant, role = split_model_name(encoder) or ("", "")
        decoder = model_name(variant, DECODER)
        if role != ENCODER or decoder not in versions:
            continue
        config = config_of(encoder)
        family = _family(config, config_of(decoder))
        if family is not None:
            variants[family.name].append(variant)
            if _checkpoint(config) == Sam2.built_in:
                demo.add(variant)
    return ServerModels(
        versions,
        {name: tuple(sorted(found, key=lambda v: (v != name, v))) for name, found in variants.items() if found},
        frozenset(demo),
    )


def _checkpoint(config: Mapping[str, Any]) -> str | None:
    checkpoint: str | None = config.get("parameters", {}).get(CHECKPOINT_KEY, {}).get("string_value")
    return checkpoint


def _family(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> Family | None:
    """Return the family of a model pair by its tensor names, which no two families share; None if no family fits."""
    for family in FAMILIES.values():
        if _fits(encoder, family.encoder) and _fits(decoder, family.decoder):
            return family
    return None


def _fits(config: Mapping[str, Any], spec: ModelSpec) -> bool:
    names = [{tensor["name"] for tensor in config.get(side, ())} for side in ("input", "output")]
    return names == [set(spec.input_names), set(spec.output_names)]
