"""SAM2's four models that track objects through a video: those of memory_graphs, and those below.

TrackingDecoder and MaskPrompt compute the same as SAM2Base._forward_sam_heads and SAM2Base._use_mask_as_output in
sam2.modeling.sam2_base.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import onnx
import torch
from sam2.modeling.sam2_base import NO_OBJ_SCORE
from torch import Tensor, nn

from ...errors import ConfigurationError
from ...families.sam2 import TRACKING as SAM2_TRACKING
from ...families.tables import ModelSpec
from ...families.tables import Tensor as TensorSpec
from ...families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER, Tracking
from .. import tracing
from .graphs import Sam2Decoder
from .memory_graphs import MemoryAttention, MemoryEncoder

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


MASK_SCALE, MASK_BIAS = 20.0, -10.0
"""A mask prompt becomes logits of -10 outside the object and 10 inside, see SAM2Base._use_mask_as_output."""


class TrackingDecoder(Sam2Decoder):
    """Computes the mask, the score and the pointer of objects in a frame of a video."""

    no_memory: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.model = model
        self.register_buffer("no_memory", model.no_mem_embed.detach().reshape(1, -1, 1).clone(), persistent=False)

    def forward(  # type: ignore[override]
        self,
        image_embeddings: Tensor,
        high_res_feats_0: Tensor,
        high_res_feats_1: Tensor,
        point_coords: Tensor,
        point_labels: Tensor,
        multimask: Tensor,
        mask_prompt: Tensor,
        mask_input: Tensor,
        has_mask_input: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decode P objects in a frame with a side of S pixels.

        Args:
            image_embeddings: (1 or P,256,S/16,S/16) from Sam2Encoder for a frame without memories, else from
                MemoryAttention.
            point_coords: (P,N,2) x, y in pixels of the frame, without the shift of 0.5 to pixel centres; N may be 0.
            point_labels: (P,N) 0 background, 1 foreground, 2 and 3 corners of a box, -1 padding, -2 no point. An object
                without points has one point with the label -1, as the official predictor gives it.
            multimask: (P,) 1: the best of three masks by predicted IoU; 0: the single mask.
            mask_prompt: (P,) 0: none; 1: mask_input comes from MaskPrompt; -1: the same with an empty mask. A mask
                prompt implies the single mask.
            mask_input: (1 or P,1,S/4,S/4) logits of an earlier prediction, or the output of MaskPrompt.
            has_mask_input: (1 or P,) 1 if mask_input contains logits of a prompt, else 0.

        Returns:
            masks (P,1,S/4,S/4): unclamped logits; -1024 if the object is not visible. For a mask prompt they are
            meaningless, because MaskPrompt returns its masks. iou_predictions (P,1); object_score_logits (P,1), above 0
            if the object is visible; object_pointers (P,256).
        """
        by_mask = mask_prompt.abs() > 0.5
        dense = self._embed_mask(mask_input, torch.maximum(has_mask_input, by_mask.to(has_mask_input.dtype)))
        image = image_embeddings.flatten(2) + dense - by_mask.to(dense.dtype).reshape(-1, 1, 1) * self.no_memory
        tokens, features = self.attend_to_prompt(image, point_coords, point_labels)
        masks, scores, object_score = self._predict(tokens, features, high_res_feats_0, high_res_feats_1)
        best = scores[:, 1:].argmax(dim=1) + 1
        is_multimask = (multimask > 0.5) & ~by_mask
        chosen = torch.where(is_multimask, best, self._choose_single(masks, scores))
        rows = torch.arange(masks.shape[0], device=masks.device)
        mask, score = masks[rows, chosen].unsqueeze(1), scores[rows, chosen].unsqueeze(1)
        if self.decoder.use_multimask_token_for_obj_ptr:
            token = self.mask_tokens(tokens)[rows, torch.where(is_multimask, best, torch.zeros_like(best))]
        else:
            token = self.mask_tokens(tokens)[:, 0]
        is_visible = object_score > 0
        pointer = self._with_visibility(self.model.obj_ptr_proj(token), is_visible)
        # A mask prompt determines whether the object is visible. The pointer uses the decoder's own prediction.
        column, says_visible = by_mask.unsqueeze(1), (mask_prompt > 0).unsqueeze(1)
        pointer = torch.where(column, self._with_visibility(pointer, says_visible), pointer)
        stated = MASK_SCALE * says_visible.to(object_score.dtype) + MASK_BIAS
        return (
            torch.where(is_visible.unsqueeze(2).unsqueeze(3), mask, NO_OBJ_SCORE),
            torch.where(column, 1.0, score),
            torch.where(column, stated, object_score),
            pointer,
        )

    def _with_visibility(self, pointer: Tensor, is_visible: Tensor) -> Tensor:
        """Replace the (P,256) pointers of objects that are not visible, (P,1) bool, as the official model does."""
        visible = is_visible.to(pointer.dtype)
        kept = visible * pointer if self.model.fixed_no_obj_ptr else pointer
        result: Tensor = kept + (1 - visible) * self.model.no_obj_ptr
        return result


class MaskPrompt(nn.Module):
    """Turns a mask prompt into the logits of its answer, and into the mask input of TrackingDecoder."""

    kernel: Tensor
    border: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        side = model.image_size // 4
        # torch's antialiased bilinear resize to a quarter: a triangle of 8 pixels. At the border it divides by the sum
        # of the weights inside the image, 3.5 of 4.
        weights = torch.tensor([1.0, 3.0, 5.0, 7.0, 7.0, 5.0, 3.0, 1.0]) / 32
        border = torch.ones(side)
        border[0] = border[-1] = 4 / 3.5
        self.register_buffer("kernel", torch.outer(weights, weights)[None, None], persistent=False)
        self.register_buffer("border", border, persistent=False)

    def forward(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return mask_input (P,1,S/4,S/4) for TrackingDecoder, and masks (P,1,S/4,S/4), logits from -10 to 10."""
        logits = nn.functional.conv2d(mask * MASK_SCALE + MASK_BIAS, self.kernel, stride=4, padding=2)
        return self.model.mask_downsample(mask), logits * self.border * self.border.unsqueeze(1)
