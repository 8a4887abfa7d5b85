"""SAM2's checkpoints without torch: names of weights, and templates that a checkpoint fills.

Meta's checkpoints have the names of the sam2 package, transformers its own. SAM2.0 has SAM2.1's graphs, but lacks three
of its video tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..filled import FilledExporter
from ..settings import Settings
from ..stored import Derived, Stored
from ..templates import Template

IMAGE_POSITION = "shared_image_embedding.positional_embedding"
POINT_POSITION = "prompt_encoder.shared_embedding.positional_embedding"
"""Meta's model has one matrix for the positions of pixels and points; transformers has two buffers."""
POINT_KINDS = "prompt_encoder.point_embed.weight"
"""The embeddings of the four kinds of points; Meta's model has a parameter for each."""

POINT_KIND = re.compile(r"sam_prompt_encoder\.point_embeddings\.(\d)\.weight")
_THREE_LAYERS = ("proj_in", "layers.0", "proj_out")
_RENAMED = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
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
        (r"^no_obj_embed_spatial$", "occlusion_spatial_embedding_parameter"),
        (r"^obj_ptr_tpos_proj\.", "temporal_positional_encoding_projection_layer."),
        (r"^obj_ptr_proj\.", "object_pointer_proj."),
        (r"^(memory_attention\..*)\.norm", r"\1.layer_norm"),
        (r"^memory_attention\.norm\.", "memory_attention.layer_norm."),
        (r"^(memory_attention\..*)\.out_proj\.", r"\1.o_proj."),
        (r"^memory_encoder\.pix_feat_proj\.", "memory_encoder.feature_projection."),
        (r"^memory_encoder\.out_proj\.", "memory_encoder.projection."),
        (r"^memory_encoder\.fuser\.", "memory_encoder.memory_fuser."),
        (r"^(memory_encoder\..*)\.dwconv\.", r"\1.depthwise_conv."),
        (r"^(memory_encoder\..*)\.norm\.", r"\1.layer_norm."),
        (r"^(memory_encoder\..*)\.pwconv(\d)\.", r"\1.pointwise_conv\2."),
        (r"^(memory_encoder\..*)\.gamma$", r"\1.scale"),
    )
)
_MASK_STEP = re.compile(r"^memory_encoder\.mask_downsampler\.encoder\.(\d+)\.")
_LAST_MASK_STEP = 12
_HEADS = re.compile(
    r"((?:output_hypernetworks_mlps\.\d|iou_prediction_head|pred_obj_score_head|object_pointer_proj))\.layers\.(\d)\."
)


def sam2_name(meta: str) -> str:
    """Return transformers' name for a weight in Meta's checkpoint."""
    for pattern, new in _RENAMED:
        meta = pattern.sub(new, meta)
    if step := _MASK_STEP.match(meta):
        layer, part = divmod(int(step[1]), 3)
        place = "final_conv" if int(step[1]) == _LAST_MASK_STEP else f"layers.{layer}.{('conv', 'layer_norm')[part]}"
        return f"memory_encoder.mask_downsampler.{place}.{meta[step.end() :]}"
    return _HEADS.sub(lambda found: f"{found[1]}.{_THREE_LAYERS[int(found[2])]}.", meta)


def of_meta_name(state: Mapping[str, Any], meta: str, transformers_name: Callable[[str], str] = sam2_name) -> Any:
    """Return a transformers model's weight by its name in Meta's checkpoint."""
    if kind := POINT_KIND.fullmatch(meta):
        return state[POINT_KINDS][int(kind[1]) : int(kind[1]) + 1]
    return state[transformers_name(meta)]


_ABSENT = ("no_obj_embed_spatial", "obj_ptr_tpos_proj.weight", "obj_ptr_tpos_proj.bias")
"""SAM2.1 adds these to memories and pointers, so zeros give SAM2.0's results."""


class Sam2Filled(FilledExporter):
    @classmethod
    def official(cls, tensors: Mapping[str, Stored], template: Template, settings: Settings) -> Mapping[str, Stored]:  # noqa: ARG003
        """Return the tensors, with zeros for those that SAM2.0 lacks."""
        if any(name in tensors for name in _ABSENT):
            return tensors
        return {**tensors, **{name: _zeros(template.layout[name]) for name in _ABSENT}}

    def config(self, settings: Settings) -> str:
        config = super().config(settings)
        return config.replace("sam2.1", "sam2") if isinstance(self._tensors[_ABSENT[0]], Derived) else config


def _zeros(shape: tuple[int, ...]) -> Stored:
    return Derived(shape, lambda: np.zeros(shape, np.float32))
