"""EdgeTAM's graphs as modules. They compute the same as transformers' EdgeTamModel and EdgeTamVideoModel.

In videos, the parts are SAM2's, except for the memory: a small Perceiver compresses the memory of a frame to tokens. So
SAM2's graphs run SAM2's modules with EdgeTAM's weights. Reference: transformers 5, models/edgetam/modeling_edgetam.py,
models/edgetam_video/modeling_edgetam_video.py.

In shapes, P is the number of objects, M of memories, T of tokens per memory (512), c of their channels (64); h and w
are S/16 for images with a side of S pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from ...families.edgetam import EDGETAM
from ...families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from ..sam2 import transformers_modules
from ..sam2.memory_graphs import MemoryAttention, MemoryEncoder, Rotation
from ..sam2.transformers_modules import PixelPositions
from ..sam2.video_graphs import Graph, MaskPrompt, TrackingDecoder
from ..sam3.graphs import Sam3Encoder
from .checkpoints import transformers_name


class EdgeTamEncoder(Sam3Encoder):
    """Computes the embeddings of images, as EdgeTamModel.get_image_embeddings does."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model, add_no_memory=True)
        self.vision = fused(self.vision)
        self.register_buffer("mean", torch.tensor(EDGETAM.pixel_mean).reshape(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(EDGETAM.pixel_std).reshape(1, 3, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode images (B,3,S,S), RGB in 0..1.

        Returns:
            image_embeddings (B,256,S/16,S/16), high_res_feats_0 (B,32,S/4,S/4), high_res_feats_1 (B,64,S/8,S/8).
        """
        fine, middle, coarse = super().forward((image - self.mean) / self.std)
        return coarse, fine, middle


def fused(vision: nn.Module) -> nn.Module:
    """Return a copy of a vision encoder in which each convolution includes the batch normalisation after it.

    RepViT is trained with two parallel convolutions and the identity; timm merges them into one for inference.
    """
    result = copy.deepcopy(vision)
    for parent in list(result.modules()):
        for name, child in parent.named_children():
            # The parts of a RepVggDw are also visited, but are no longer used then.
            if hasattr(child, "fuse"):
                fusible: Any = child
                setattr(parent, name, fusible.fuse())
    return result


class EdgeTamDecoder(PixelPositions):
    """Computes masks from embeddings and prompts, as EdgeTamModel.forward does, with SAM2's decoder."""


_WINDOWS = 16
"""A memory has one token for each of 16 x 16 parts of the image."""


def sam2_of(model: Any) -> Any:
    """Return a SAM2Base with the weights and the Perceiver (``spatial_perceiver``) of an EdgeTamVideoModel."""
    base = transformers_modules.sam2_of(model, transformers_name)
    base.spatial_perceiver = model.spatial_perceiver
    return base


class EdgeTamMemoryAttention(MemoryAttention):
    """SAM2's MemoryAttention for memories (P,M,T,c): first the tokens of the whole frame, then those of its parts.

    Only the tokens of parts have positions and are rotated.
    """

    memory_side = _WINDOWS

    def __init__(self, model: Any, *, fused: bool) -> None:
        super().__init__(model, fused=fused)
        self.whole = model.spatial_perceiver.num_latents_1d

    def _tokens(self, memories: Tensor) -> Tensor:
        return memories

    def _memory_positions(self) -> Tensor:
        parts = super()._memory_positions()
        return torch.cat([parts.new_zeros(self.whole, parts.shape[1]), parts])

    def _key_rotation(self, rotation: Rotation) -> Rotation:  # noqa: ARG002
        # Both tables begin with position 0, so the tables for the parts are the first rows of the image's tables.
        tables = (self.cosines[:_WINDOWS], self.sines[:_WINDOWS])
        cosines, sines = (self._spread(table, table, columns_first=True) for table in tables)
        shape = self.whole, cosines.shape[1]
        return torch.cat([cosines.new_ones(shape), cosines]), torch.cat([sines.new_zeros(shape), sines])


class EdgeTamMemoryEncoder(MemoryEncoder):
    """SAM2's MemoryEncoder, followed by the Perceiver, which returns memories (P,T,c)."""

    position: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.perceiver = model.spatial_perceiver
        side = model.image_size // model.backbone_stride
        position = model.memory_encoder.position_encoding(torch.zeros(1, 1, side, side))
        self.register_buffer("position", position.flatten(2).transpose(1, 2).clone(), persistent=False)

    def forward(
        self, image_embeddings: Tensor, masks: Tensor, object_score_logits: Tensor, is_prompted: Tensor
    ) -> Tensor:
        """Encode the masks of P objects in one frame; see MemoryEncoder.forward. Returns memories (P,T,c)."""
        memory = super().forward(image_embeddings, masks, object_score_logits, is_prompted)
        whole = self._read(self.perceiver.latents_1d.unsqueeze(0), memory.flatten(2).transpose(1, 2), self.position)
        cells = memory.shape[-1] // _WINDOWS
        windows = torch.unflatten(torch.unflatten(memory, 3, (_WINDOWS, cells)), 2, (_WINDOWS, cells))
        windows = windows.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(1, 2)  # (P,256,cells*cells,c)
        parts = self._read(self.perceiver.latents_2d.unsqueeze(1).unsqueeze(0), windows, None).squeeze(2)
        tokens: Tensor = self.perceiver.layer_norm(torch.cat([whole, parts], dim=1))
        return tokens

    def _read(self, latents: Tensor, features: Tensor, position: Tensor | None) -> Tensor:
        """Run the layers of the Perceiver: latents (...,N,c) read features (...,L,c). Returns (...,N,c)."""
        for layer in self.perceiver.layers:
            read = layer.layer_norm_input(features)
            latents = latents + _attend(layer.cross_attention, layer.layer_norm_latents(latents), read, position)
            latents = latents + layer.mlp(latents)
            own = layer.layer_norm_self(latents)
            latents = latents + _attend(layer.self_attention, own, own, None)
            latents = latents + layer.self_mlp(latents)
        return latents


def _attend(attention: Any, query: Tensor, features: Tensor, position: Tensor | None) -> Tensor:
    """Compute EdgeTamVideoPerceiverAttention with one head: (...,N,c) queries read (...,L,c) features."""
    key, value = attention.k_proj(features), attention.v_proj(features)
    if position is not None:
        key, value = key + position, value + position
    weights = ((attention.q_proj(query) * attention.scaling) @ key.transpose(-1, -2)).softmax(dim=-1)
    result: Tensor = attention.o_proj(weights @ value)
    return result


class EdgeTamTrackingDecoder(PixelPositions, TrackingDecoder):
    """SAM2's TrackingDecoder with EdgeTAM's pixel positions."""


GRAPHS: Mapping[str, Graph] = MappingProxyType(
    {
        MEMORY_ATTENTION: lambda model, fused: EdgeTamMemoryAttention(model, fused=fused),
        MEMORY_ENCODER: lambda model, _: EdgeTamMemoryEncoder(model),
        TRACKING_DECODER: lambda model, _: EdgeTamTrackingDecoder(model),
        MASK_PROMPT: lambda model, _: MaskPrompt(model),
    }
)
"""EdgeTAM's modules by role."""
