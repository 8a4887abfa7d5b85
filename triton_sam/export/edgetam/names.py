"""The names of EdgeTAM's weights: Meta's checkpoint has those of the sam2 package, transformers has its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Weight = TypeVar("Weight")

VIDEO_HALF = (
    "memory_",
    "mask_downsample",
    "spatial_perceiver",
    "object_pointer_",
    "no_memory_positional_encoding",
    "no_object_pointer",
)
"""The beginnings of transformers' names of the weights that only videos need."""

IMAGE_POSITION = "shared_image_embedding.positional_embedding"
POINT_POSITION = "prompt_encoder.shared_embedding.positional_embedding"
"""Meta's model has one matrix for the positions of pixels and of points; transformers has two buffers."""
POINT_KINDS = "prompt_encoder.point_embed.weight"
"""The embeddings of the four kinds of points; Meta's model has a parameter for each."""

_META = "sam_mask_decoder."
"""A checkpoint of Meta has names that begin like this, and transformers has none."""
_KEYS_AND_VALUES = ".to_kv.weight"
"""Meta's Perceiver has one matrix for keys and values, and transformers has two."""

_POINT_KIND = re.compile(r"sam_prompt_encoder\.point_embeddings\.(\d)\.weight")
_THREE_LAYERS = ("proj_in", "layers.0", "proj_out")
_RENAMED = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"^image_encoder\.trunk\.body\.", "vision_encoder.backbone.timm_model."),
        (r"^image_encoder\.neck\.convs\.(\d)\.conv\.", r"vision_encoder.neck.convs.\1."),
        (r"^no_mem_embed$", "no_memory_embedding"),
        (r"^sam_mask_decoder\.", "mask_decoder."),
        (r"^sam_prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix$", POINT_POSITION),
        (r"^sam_prompt_encoder\.", "prompt_encoder."),
        (r"\.mask_downscaling\.0\.", ".mask_embed.conv1."),
        (r"\.mask_downscaling\.1\.", ".mask_embed.layer_norm1."),
        (r"\.mask_downscaling\.3\.", ".mask_embed.conv2."),
        (r"\.mask_downscaling\.4\.", ".mask_embed.layer_norm2."),
        (r"\.mask_downscaling\.6\.", ".mask_embed.conv3."),
        (r"\.output_upscaling\.0\.", ".upscale_conv1."),
        (r"\.output_upscaling\.1\.", ".upscale_layer_norm."),
        (r"\.output_upscaling\.3\.", ".upscale_conv2."),
        (r"^(mask_decoder\.transformer\..*)\.norm", r"\1.layer_norm"),
        (r"^(mask_decoder\.transformer\..*)\.out_proj\.", r"\1.o_proj."),
        (r"^(mask_decoder\.transformer)\.norm_final_attn\.", r"\1.layer_norm_final_attn."),
        (r"\.mlp\.layers\.0\.", ".mlp.proj_in."),
        (r"\.mlp\.layers\.1\.", ".mlp.proj_out."),
        (r"^maskmem_tpos_enc$", "memory_temporal_positional_encoding"),
        (r"^no_mem_pos_enc$", "no_memory_positional_encoding"),
        (r"^no_obj_ptr$", "no_object_pointer"),
        (r"^obj_ptr_proj\.", "object_pointer_proj."),
        (r"^(memory_attention\..*)\.norm", r"\1.layer_norm"),
        (r"^memory_attention\.norm\.", "memory_attention.layer_norm."),
        (r"^(memory_attention\..*)\.out_proj\.", r"\1.o_proj."),
        (r"^(memory_attention\..*)\.linear1\.", r"\1.mlp.up_proj."),
        (r"^(memory_attention\..*)\.linear2\.", r"\1.mlp.down_proj."),
        (r"^memory_encoder\.pix_feat_proj\.", "memory_encoder.feature_projection."),
        (r"^memory_encoder\.out_proj\.", "memory_encoder.projection."),
        (r"^memory_encoder\.fuser\.", "memory_encoder.memory_fuser."),
        (r"^(memory_encoder\..*)\.dwconv\.", r"\1.depthwise_conv."),
        (r"^(memory_encoder\..*)\.norm\.", r"\1.layer_norm."),
        (r"^(memory_encoder\..*)\.pwconv(\d)\.", r"\1.pointwise_conv\2."),
        (r"^(memory_encoder\..*)\.gamma$", r"\1.scale"),
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
_MASK_STEP = re.compile(r"^memory_encoder\.mask_downsampler\.encoder\.(\d+)\.")
_LAST_MASK_STEP = 12
_HEADS = re.compile(
    r"((?:output_hypernetworks_mlps\.\d|iou_prediction_head|pred_obj_score_head|object_pointer_proj))\.layers\.(\d)\."
)


def transformers_name(meta: str) -> str:
    """Return transformers' name of a weight for its name in Meta's checkpoint."""
    for pattern, new in _RENAMED:
        meta = pattern.sub(new, meta)
    if step := _MASK_STEP.match(meta):
        layer, part = divmod(int(step[1]), 3)
        place = "final_conv" if int(step[1]) == _LAST_MASK_STEP else f"layers.{layer}.{('conv', 'layer_norm')[part]}"
        return f"memory_encoder.mask_downsampler.{place}.{meta[step.end() :]}"
    return _HEADS.sub(lambda found: f"{found[1]}.{_THREE_LAYERS[int(found[2])]}.", meta)


def of_meta_name(state: Mapping[str, Any], meta: str) -> Any:
    """Return a weight of a transformers model by its name in Meta's checkpoint."""
    if kind := _POINT_KIND.fullmatch(meta):
        return state[POINT_KINDS][int(kind[1]) : int(kind[1]) + 1]
    return state[transformers_name(meta)]


def adapt_names(
    state: dict[str, Weight],
    join: Callable[[list[Weight]], Weight],
    halve: Callable[[Weight], tuple[Weight, Weight]],
) -> None:
    """Turn a state dict with names of either layout into one with those of transformers, in place."""
    if any(name.startswith(_META) for name in state):
        _adapt_meta(state, join, halve)
    if POINT_POSITION in state:
        state.setdefault(IMAGE_POSITION, state[POINT_POSITION])


def _adapt_meta(
    state: dict[str, Weight],
    join: Callable[[list[Weight]], Weight],
    halve: Callable[[Weight], tuple[Weight, Weight]],
) -> None:
    kinds = sorted(name for name in state if _POINT_KIND.fullmatch(name))
    found = {transformers_name(name): value for name, value in state.items() if name not in kinds}
    if kinds:
        found[POINT_KINDS] = join([state[name] for name in kinds])
    for name in [name for name in found if name.endswith(_KEYS_AND_VALUES)]:
        place = name.removesuffix(_KEYS_AND_VALUES)
        found[f"{place}.k_proj.weight"], found[f"{place}.v_proj.weight"] = halve(found.pop(name))
    state.clear()
    state.update(found)
