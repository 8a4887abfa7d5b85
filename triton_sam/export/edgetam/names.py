"""The names of EdgeTAM's weights: Meta's checkpoint has those of the sam2 package, transformers has its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

VIDEO_HALF = (
    "memory_",
    "mask_downsample",
    "spatial_perceiver",
    "obj_ptr_",
    "object_pointer_",
    "maskmem_tpos_enc",
    "no_mem_pos_enc",
    "no_memory_positional_encoding",
    "no_obj_",
    "no_object_pointer",
    "occlusion_spatial_embedding_parameter",
    "temporal_positional_encoding_projection_layer",
)
"""The beginnings of the names of weights that only videos need, in both layouts."""

IMAGE_POSITION = "shared_image_embedding.positional_embedding"
POINT_POSITION = "prompt_encoder.shared_embedding.positional_embedding"
"""Meta's model has one matrix for the positions of pixels and of points; transformers has two buffers."""
POINT_KINDS = "prompt_encoder.point_embed.weight"
"""The embeddings of the four kinds of points; Meta's model has a parameter for each."""

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
    )
)
_HEADS = re.compile(r"((?:output_hypernetworks_mlps\.\d|iou_prediction_head|pred_obj_score_head))\.layers\.(\d)\.")


def transformers_name(meta: str) -> str:
    """Return transformers' name of a weight of the image half, for its name in Meta's checkpoint.

    A name that is transformers' own already stays as it is.
    """
    if not meta.startswith(("sam_", "image_encoder.", "no_mem_embed")):
        return meta
    for pattern, new in _RENAMED:
        meta = pattern.sub(new, meta)
    return _HEADS.sub(lambda found: f"{found[1]}.{_THREE_LAYERS[int(found[2])]}.", meta)


def of_meta_name(state: Mapping[str, Any], meta: str) -> Any:
    """Return a weight of a transformers model by its name in Meta's checkpoint."""
    if kind := _POINT_KIND.fullmatch(meta):
        return state[POINT_KINDS][int(kind[1]) : int(kind[1]) + 1]
    return state[transformers_name(meta)]


def image_half(state: dict[str, Any]) -> None:
    """Turn a state dict with names of either layout into that of an EdgeTamModel, in place.

    Weights that only videos need are left out.
    """
    kept = {name: value for name, value in state.items() if not name.startswith(VIDEO_HALF)}
    kinds = sorted(name for name in kept if _POINT_KIND.fullmatch(name))
    found = {transformers_name(name): value for name, value in kept.items() if name not in kinds}
    if kinds:
        found[POINT_KINDS] = torch.cat([kept[name] for name in kinds])
    if POINT_POSITION in found:
        found.setdefault(IMAGE_POSITION, found[POINT_POSITION])
    state.clear()
    state.update(found)
