"""Trace the four models that track objects through a video, see memory_graphs and tracking_graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from ...errors import ConfigurationError
from ...families.sam2 import TRACKING as SAM2_TRACKING
from ...families.tables import ModelSpec
from ...families.tables import Tensor as TensorSpec
from ...families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER, Tracking
from .. import tracing
from .memory_graphs import MemoryAttention, MemoryEncoder
from .tracking_graphs import MaskPrompt, TrackingDecoder

_EXAMPLE_SIZES = {"images": 1, "masks": 1, "objects": 2, "memories": 3, "pointers": 5, "points": 4}
"""Sizes of the dynamic dimensions in a trace.

They differ, so that torch does not treat two dimensions as equal. Images and masks are traced with a batch of 1, which
is broadcast; free_batch() makes it dynamic afterwards.
"""

_SETTINGS = {
    "use_obj_ptrs_in_encoder": True,
    "pred_obj_scores": True,
    "soft_no_obj_ptr": False,
    "directly_add_no_mem_embed": True,
    "use_mask_input_as_output_without_sam": True,
    "only_obj_ptrs_in_the_past_for_eval": True,
    "multimask_output_in_sam": True,
    "multimask_output_for_tracking": True,
    "memory_temporal_stride_for_eval": 1,
    "non_overlap_masks_for_mem_enc": False,
    "multimask_min_pt_num": 0,
}
"""Common settings of SAM2Base in all sizes of SAM2.0 and SAM2.1, required by the graphs and the video sessions."""
_LAYER_SETTINGS = {
    "pos_enc_at_attn": False,
    "pos_enc_at_cross_attn_keys": True,
    "pos_enc_at_cross_attn_queries": False,
}


def check_video_model(model: Any, tracking: Tracking = SAM2_TRACKING) -> None:
    """Check that a SAM2Base tracks objects as in the official configurations and in the family's table."""
    expected = {
        **_SETTINGS,
        "num_maskmem": tracking.memories + 1,
        "max_obj_ptrs_in_encoder": tracking.pointers,
        "max_cond_frames_in_attn": -1 if tracking.prompted_memories is None else tracking.prompted_memories,
        "multimask_max_pt_num": tracking.multimask_points,
        "mem_dim": tracking.memory_shape[0],
        "hidden_dim": tracking.pointer_channels,
    }
    for name, value in expected.items():
        _require(name, getattr(model, name), value)
    for layer in model.memory_attention.layers:
        for name, value in _LAYER_SETTINGS.items():
            _require(name, getattr(layer, name), value)
        for attention in (layer.self_attn, layer.cross_attn_image):
            _require("num_heads", attention.num_heads, 1)
            _require("internal_dim", attention.internal_dim, model.memory_attention.layers[0].self_attn.internal_dim)


def _require(name: str, found: object, expected: object) -> None:
    if found != expected:
        raise ConfigurationError(
            f"the configuration has {name}: {found}, but the models for videos need {expected}: export without --video"
        )


Graph = Callable[[Any, bool], nn.Module]
"""Builds a role's module from a SAM2Base; the second argument enables ONNX Runtime's own attention operator."""
GRAPHS: Mapping[str, Graph] = MappingProxyType(
    {
        MEMORY_ATTENTION: lambda model, fused: MemoryAttention(model, fused=fused),
        MEMORY_ENCODER: lambda model, _: MemoryEncoder(model),
        TRACKING_DECODER: lambda model, _: TrackingDecoder(model),
        MASK_PROMPT: lambda model, _: MaskPrompt(model),
    }
)
"""SAM2's modules by role."""


def trace_video(
    model: Any,
    spec: ModelSpec,
    standard_operators: bool = False,
    graphs: Mapping[str, Graph] = GRAPHS,
    tracking: Tracking = SAM2_TRACKING,
) -> onnx.ModelProto:
    check_video_model(model, tracking)
    free = {
        symbol: torch.export.Dim(symbol, min=_minimum(spec, symbol))
        for symbol, size in _EXAMPLE_SIZES.items()
        if size > 1
    }
    dynamic = {
        tensor.name: {axis: free[side] for axis, side in enumerate(tensor.shape) if side in free}
        for tensor in spec.inputs
    }
    example = [_example(tensor, model.device) for tensor in spec.inputs]
    graph = tracing.trace(graphs[spec.role](model, not standard_operators), spec, example, dynamic)
    tracing.free_batch(graph)
    return graph


def _minimum(spec: ModelSpec, symbol: str) -> int:
    return spec.dimensions[symbol].minimum if symbol in spec.dimensions else 1


def _example(tensor: TensorSpec, device: torch.device) -> Tensor:
    shape = [_EXAMPLE_SIZES[side] if isinstance(side, str) else side for side in tensor.shape]
    if tensor.dtype == "INT64":
        return torch.ones(shape, dtype=torch.int64, device=device)
    return torch.rand(shape, device=device)
