"""The models that a server has ready, sorted into families and variants by their tensors and parameters, and the
weights of an encoder by the id of an image."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..families import FAMILIES, Family, families_with, model_name, split_model_name
from ..families.registry import TensorNames
from ..families.sam2 import SAM2
from ..families.tables import DECODER, ENCODER
from ..inputs.embeddings import ImageEmbeddings
from ..repository.config import CHECKPOINT_KEY, FAMILY_KEY
from .session_image import SessionImage

FIXED_IMAGE = b"BM" + struct.pack("<IIIIiiHHIIiiII", 58, 0, 54, 40, 1, 1, 1, 24, 0, 4, 0, 0, 0, 0) + bytes(4)
"""A BMP file with one black pixel."""


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
            if _parameter(config, CHECKPOINT_KEY) == SAM2.built_in:
                demo.add(variant)
    return ServerModels(
        versions,
        {name: tuple(sorted(found, key=lambda v: (v != name, v))) for name, found in variants.items() if found},
        frozenset(demo),
    )


def _parameter(config: Mapping[str, Any], key: str) -> str | None:
    value: str | None = config.get("parameters", {}).get(key, {}).get("string_value")
    return value


def _family(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> Family | None:
    """Return the family of a model pair; None if no family has its tensors.

    If several have them, the parameter of the encoder decides; without it, the family that was registered first.
    """
    fitting = families_with(_tensors(encoder), _tensors(decoder))
    named = [family for family in fitting if family.name == _parameter(encoder, FAMILY_KEY)]
    return next(iter([*named, *fitting]), None)


def _tensors(config: Mapping[str, Any]) -> TensorNames:
    inputs, outputs = (frozenset(tensor["name"] for tensor in config.get(side, ())) for side in ("input", "output"))
    return inputs, outputs


@dataclass(frozen=True)
class EncoderIdentity:
    """The encoder of a server.

    Args:
        weights: the session model's id of a fixed image, which is the same on all servers with the same weights. None
            without a session model.
    """

    family: str
    encoder: str
    weights: str | None

    @classmethod
    def of(cls, image: ImageEmbeddings) -> EncoderIdentity:
        """Return the encoder that has encoded FIXED_IMAGE."""
        return cls(image.family, image.model, image.remote.image_id if isinstance(image, SessionImage) else None)
