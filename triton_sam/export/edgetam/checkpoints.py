"""EdgeTAM's checkpoints without torch: Meta's has the names of the sam2 package, transformers' its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..filled import FilledExporter
from ..sam2.checkpoints import IMAGE_POSITION, POINT_KIND, POINT_KINDS, POINT_POSITION, sam2_name
from ..settings import Settings
from ..stored import Stored, halves, joined
from ..templates import Layout, Template

Weight = TypeVar("Weight")

VIDEO_HALF = (
    "memory_",
    "mask_downsample",
    "spatial_perceiver",
    "object_pointer_",
    "no_memory_positional_encoding",
    "no_object_pointer",
)
"""The prefixes of transformers' names for the weights that only videos need."""

_META = "sam_mask_decoder."
"""A prefix of names in Meta's checkpoint, but not in transformers' checkpoints."""
_KEYS_AND_VALUES = ".to_kv.weight"
"""Meta's Perceiver has one matrix for keys and values, transformers has two."""

_RENAMED = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"^image_encoder\.trunk\.body\.", "vision_encoder.backbone.timm_model."),
        (r"^image_encoder\.neck\.convs\.(\d)\.conv\.", r"vision_encoder.neck.convs.\1."),
        (r"^(memory_attention\..*)\.linear1\.", r"\1.mlp.up_proj."),
        (r"^(memory_attention\..*)\.linear2\.", r"\1.mlp.down_proj."),
        (r"^spatial_perceiver\.latents$", "spatial_perceiver.latents_1d"),
        (r"^spatial_perceiver\.norm\.", "spatial_perceiver.layer_norm."),
        (r"^(spatial_perceiver\..*)\.attn\.norm_x\.", r"\1.layer_norm_input."),
        (r"^(spatial_perceiver\..*)\.attn\.norm_latents\.", r"\1.layer_norm_latents."),
        (r"^(spatial_perceiver\..*)\.self_attn\.norm\.", r"\1.layer_norm_self."),
        (r"^(spatial_perceiver\..*)\.attn\.", r"\1.cross_attention."),
        (r"^(spatial_perceiver\..*)\.self_attn\.", r"\1.self_attention."),
        (r"\.to_q\.", ".q_proj."),
        (r"\.to_out\.", ".o_proj."),
        (r"^(spatial_perceiver\..*)\.ff\.0\.", r"\1.mlp.layer_norm."),
        (r"^(spatial_perceiver\..*)\.ff\.1\.", r"\1.mlp.up_proj."),
        (r"^(spatial_perceiver\..*)\.ff\.3\.", r"\1.mlp.down_proj."),
        (r"^(spatial_perceiver\..*)\.self_ff\.0\.", r"\1.self_mlp.layer_norm."),
        (r"^(spatial_perceiver\..*)\.self_ff\.1\.", r"\1.self_mlp.up_proj."),
        (r"^(spatial_perceiver\..*)\.self_ff\.3\.", r"\1.self_mlp.down_proj."),
    )
)


def transformers_name(meta: str) -> str:
    """Return transformers' name for a weight in Meta's checkpoint."""
    for pattern, new in _RENAMED:
        meta = pattern.sub(new, meta)
    return sam2_name(meta)


def adapt_names(
    state: dict[str, Weight],
    join: Callable[[list[Weight]], Weight],
    halve: Callable[[Weight], tuple[Weight, Weight]],
) -> None:
    """Rename the weights of a state dict in either layout to transformers' names, in place."""
    if any(name.startswith(_META) for name in state):
        _adapt_meta(state, join, halve)
    if POINT_POSITION in state:
        state.setdefault(IMAGE_POSITION, state[POINT_POSITION])


def _adapt_meta(
    state: dict[str, Weight],
    join: Callable[[list[Weight]], Weight],
    halve: Callable[[Weight], tuple[Weight, Weight]],
) -> None:
    kinds = sorted(name for name in state if POINT_KIND.fullmatch(name))
    found = {transformers_name(name): value for name, value in state.items() if name not in kinds}
    if kinds:
        found[POINT_KINDS] = join([state[name] for name in kinds])
    for name in [name for name in found if name.endswith(_KEYS_AND_VALUES)]:
        place = name.removesuffix(_KEYS_AND_VALUES)
        found[f"{place}.k_proj.weight"], found[f"{place}.v_proj.weight"] = halve(found.pop(name))
    state.clear()
    state.update(found)


class EdgeTamFilled(FilledExporter):
    @staticmethod
    def wanted(template: Template, settings: Settings) -> Layout:
        """Without video, the checkpoint may lack the weights that only videos need."""
        return template.layout if settings.video else _without_video(template.layout)

    @classmethod
    def official(cls, tensors: Mapping[str, Stored], template: Template, settings: Settings) -> Mapping[str, Stored]:  # noqa: ARG003
        state = dict(tensors)
        adapt_names(state, joined, halves)
        return state if settings.video else _without_video(state)


def _without_video(named: Mapping[str, Weight]) -> dict[str, Weight]:
    return {name: value for name, value in named.items() if not name.startswith(VIDEO_HALF)}
