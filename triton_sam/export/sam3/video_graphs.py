"""SAM3's models for videos as modules. They compute the same as transformers' Sam3TrackerVideoModel.

The parts are SAM2's, with SAM3's sizes, so SAM2's graphs run SAM2's modules with SAM3's weights. Reference:
transformers 5, models/sam3_tracker_video/modeling_sam3_tracker_video.py.

In shapes, P is the number of objects. For images with a side of S pixels, h is S/14 and s is 4h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from ..sam2 import transformers_modules
from ..sam2.memory_graphs import MemoryAttention, MemoryEncoder
from ..sam2.transformers_modules import PixelPositions
from ..sam2.video_graphs import MASK_BIAS, MASK_SCALE, Graph, TrackingDecoder


def sam2_of(model: Any, add_no_memory: bool) -> Any:
    """Return a SAM2Base with the weights of a Sam3TrackerVideoModel.

    SAM2's encoder adds the no-memory embedding, which the memory attention subtracts again. If SAM3's encoder leaves it
    out, the tracking decoder adds it to all embeddings with the dense prompt, and the memory attention subtracts it
    from its output beforehand.
    """
    base = transformers_modules.sam2_of(model)
    if not add_no_memory:
        absent, prompts = base.no_mem_embed.flatten(), base.sam_prompt_encoder
        # Not in place, so that make_templates.py can record it.
        base.memory_attention.norm.bias.data = base.memory_attention.norm.bias - absent
        prompts.no_mask_embed.weight.data = prompts.no_mask_embed.weight + absent
        prompts.mask_downscaling[-1].bias.data = prompts.mask_downscaling[-1].bias + absent
    return base


def graphs(add_no_memory: bool) -> Mapping[str, Graph]:
    """Return SAM3's modules by role, for a model from sam2_of()."""
    return {
        MEMORY_ATTENTION: lambda model, fused: Sam3MemoryAttention(model, fused, add_no_memory),
        MEMORY_ENCODER: lambda model, _: Sam3MemoryEncoder(model, add_no_memory),
        TRACKING_DECODER: lambda model, _: Sam3TrackingDecoder(model),
        MASK_PROMPT: lambda model, _: Sam3MaskPrompt(model),
    }


class Sam3MemoryAttention(MemoryAttention):
    """SAM2's MemoryAttention for embeddings with or without the no-memory embedding."""

    def __init__(self, model: Any, fused: bool, add_no_memory: bool) -> None:
        super().__init__(model, fused=fused)
        self.no_memory = self.no_memory * add_no_memory


class Sam3MemoryEncoder(MemoryEncoder):
    """SAM2's MemoryEncoder for masks of 16h x 16h pixels, which are larger than the image."""

    def __init__(self, model: Any, add_no_memory: bool) -> None:
        super().__init__(model)
        self.no_memory = self.no_memory * add_no_memory

    def _enlarged(self, masks: Tensor) -> Tensor:
        side = 4 * masks.shape[-1]
        return nn.functional.interpolate(super()._enlarged(masks), size=(side, side), mode="bilinear")


class Sam3TrackingDecoder(PixelPositions, TrackingDecoder):
    """SAM2's TrackingDecoder with SAM3's pixel positions."""


class Sam3MaskPrompt(nn.Module):
    """SAM2's MaskPrompt for a side that is not a multiple of the logits' side: two matrices resize as torch does."""

    logits: Tensor
    prompt: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.downsample = model.mask_downsample
        side, low = model.image_size, 4 * model.sam_image_embedding_size
        self.register_buffer("logits", _resize(side, low), persistent=False)
        self.register_buffer("prompt", _resize(side // 4, low), persistent=False)

    def forward(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Prepare the masks (P,1,S,S); returns as MaskPrompt.forward does, both (P,1,s,s)."""
        pixels, features = mask * MASK_SCALE + MASK_BIAS, self.downsample(mask)
        return self.prompt @ features @ self.prompt.T, self.logits @ pixels @ self.logits.T


def _resize(side: int, target: int) -> Tensor:
    """Return the matrix (target,side) of torch's bilinear resize with antialiasing along one axis."""
    rows = torch.eye(side)[None, None]
    resized = nn.functional.interpolate(rows, size=(target, side), mode="bilinear", antialias=True)
    return resized[0, 0]
