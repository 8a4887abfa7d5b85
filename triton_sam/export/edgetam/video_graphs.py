"""EdgeTAM's models for videos as modules. They compute the same as transformers' EdgeTamVideoModel.

The parts are SAM2's, but for the memory: a small Perceiver compresses the memory of a frame to tokens. So the modules
of the sam2 package get EdgeTAM's weights, and SAM2's graphs run them. Reference: transformers 5,
models/edgetam_video/modeling_edgetam_video.py.

In shapes, P is the number of objects, M of memories, T of tokens of a memory (512), c of their channels (64), h and w
are S/16 for images with a side of S pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from sam2.modeling.memory_attention import MemoryAttention as Sam2MemoryAttention
from sam2.modeling.memory_attention import MemoryAttentionLayer
from sam2.modeling.memory_encoder import CXBlock, Fuser, MaskDownSampler
from sam2.modeling.memory_encoder import MemoryEncoder as Sam2MemoryEncoder
from sam2.modeling.position_encoding import PositionEmbeddingSine
from sam2.modeling.sam.transformer import RoPEAttention
from sam2.modeling.sam2_base import SAM2Base
from torch import Tensor, nn

from ...families.tracking import MASK_PROMPT, MEMORY_ATTENTION, MEMORY_ENCODER, TRACKING_DECODER
from ..sam2.memory_graphs import MemoryAttention, MemoryEncoder, Rotation
from ..sam2.tracking_graphs import MaskPrompt, TrackingDecoder
from ..sam2.video_graphs import Graph
from .names import of_meta_name

_WINDOWS = 16
"""A memory has a token for each of 16 x 16 parts of the image."""


def sam2_of(model: Any) -> Any:
    """Return a SAM2Base without an image encoder, with the weights of an EdgeTamVideoModel.

    It also has the Perceiver (``spatial_perceiver``) and the positions of pixels (``image_position``) of the model.
    """
    base = _Sam2(model)
    state = model.state_dict()
    base.load_state_dict({name: of_meta_name(state, name) for name in base.state_dict()})
    base.register_buffer("image_position", model.get_image_wide_positional_embeddings(), persistent=False)
    base.spatial_perceiver = model.spatial_perceiver
    return base.eval().requires_grad_(False)


class _Sam2(SAM2Base):  # type: ignore[misc]
    """SAM2Base with the settings of Meta's edgetam.yaml, and without an image encoder."""

    def __init__(self, model: Any) -> None:
        config = model.config
        neck = SimpleNamespace(d_model=model.hidden_dim, position_encoding=PositionEmbeddingSine(model.hidden_dim))
        super().__init__(
            _NoEncoder(neck),
            _memory_attention(config, model.hidden_dim),
            _memory_encoder(config),
            num_maskmem=config.num_maskmem,
            image_size=model.image_size,
            sigmoid_scale_for_mem_enc=config.sigmoid_scale_for_mem_enc,
            sigmoid_bias_for_mem_enc=config.sigmoid_bias_for_mem_enc,
            use_mask_input_as_output_without_sam=True,
            max_cond_frames_in_attn=config.max_cond_frame_num,
            directly_add_no_mem_embed=True,
            use_high_res_features_in_sam=True,
            multimask_output_in_sam=config.multimask_output_in_sam,
            multimask_min_pt_num=config.multimask_min_pt_num,
            multimask_max_pt_num=config.multimask_max_pt_num,
            multimask_output_for_tracking=config.multimask_output_for_tracking,
            use_multimask_token_for_obj_ptr=True,
            iou_prediction_use_sigmoid=True,
            use_obj_ptrs_in_encoder=True,
            max_obj_ptrs_in_encoder=config.max_object_pointers_in_encoder,
            add_tpos_enc_to_obj_ptrs=config.enable_temporal_pos_encoding_for_object_pointers,
            only_obj_ptrs_in_the_past_for_eval=True,
            pred_obj_scores=True,
            pred_obj_scores_mlp=True,
            fixed_no_obj_ptr=True,
            use_mlp_for_obj_ptr_proj=True,
            sam_mask_decoder_extra_args={
                "dynamic_multimask_via_stability": config.mask_decoder_config.dynamic_multimask_via_stability,
                "dynamic_multimask_stability_delta": config.mask_decoder_config.dynamic_multimask_stability_delta,
                "dynamic_multimask_stability_thresh": config.mask_decoder_config.dynamic_multimask_stability_thresh,
            },
        )


class _NoEncoder(nn.Module):
    """Stands for the image encoder, of which only the neck's settings are read."""

    def __init__(self, neck: Any) -> None:
        super().__init__()
        self.neck = neck


def _memory_attention(config: Any, channels: int) -> nn.Module:
    def attention(**options: Any) -> nn.Module:
        module: nn.Module = RoPEAttention(
            rope_theta=config.rope_parameters["rope_theta"],
            feat_sizes=config.memory_attention_rope_feat_sizes,
            embedding_dim=channels,
            num_heads=config.memory_attention_num_attention_heads,
            downsample_rate=config.memory_attention_downsample_rate,
            **options,
        )
        return module

    layer = MemoryAttentionLayer(
        activation=config.memory_attention_mlp_hidden_act,
        cross_attention=attention(rope_k_repeat=True, kv_in_dim=config.memory_encoder_output_channels),
        d_model=channels,
        dim_feedforward=config.memory_attention_mlp_hidden_size,
        dropout=0.0,
        pos_enc_at_attn=False,
        pos_enc_at_cross_attn_keys=True,
        pos_enc_at_cross_attn_queries=False,
        self_attention=attention(),
    )
    found: nn.Module = Sam2MemoryAttention(channels, True, layer, config.memory_attention_num_layers)
    return found


def _memory_encoder(config: Any) -> nn.Module:
    channels = config.memory_encoder_output_channels
    sampler = MaskDownSampler(
        config.mask_downsampler_embed_dim,
        config.mask_downsampler_kernel_size,
        config.mask_downsampler_stride,
        config.mask_downsampler_padding,
        config.mask_downsampler_total_stride,
    )
    block = CXBlock(config.memory_fuser_embed_dim, config.memory_fuser_kernel_size, config.memory_fuser_padding)
    fuser = Fuser(block, config.memory_fuser_num_layers)
    encoder: nn.Module = Sam2MemoryEncoder(
        channels, sampler, fuser, PositionEmbeddingSine(channels), config.memory_encoder_hidden_size
    )
    return encoder


class EdgeTamMemoryAttention(MemoryAttention):
    """SAM2's MemoryAttention for memories (P,M,T,c): first the tokens of the whole frame, then those of its parts.

    Only the latter have positions and are rotated.
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
        # Both tables begin with position 0, so those of the parts are the first rows of those of the image.
        tables = (self.cosines[:_WINDOWS], self.sines[:_WINDOWS])
        cosines, sines = (self._spread(table, table, columns_first=True) for table in tables)
        shape = self.whole, cosines.shape[1]
        return torch.cat([cosines.new_ones(shape), cosines]), torch.cat([sines.new_zeros(shape), sines])


class EdgeTamMemoryEncoder(MemoryEncoder):
    """SAM2's MemoryEncoder, and the Perceiver behind it, which returns memories (P,T,c)."""

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


class EdgeTamTrackingDecoder(TrackingDecoder):
    """SAM2's TrackingDecoder, with the positions of pixels in a buffer of their own, as transformers has them."""

    image_position: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.register_buffer("image_position", model.image_position.clone(), persistent=False)

    def _positions(self) -> Tensor:
        return self.image_position


GRAPHS: Mapping[str, Graph] = MappingProxyType(
    {
        MEMORY_ATTENTION: lambda model, fused: EdgeTamMemoryAttention(model, fused=fused),
        MEMORY_ENCODER: lambda model, _: EdgeTamMemoryEncoder(model),
        TRACKING_DECODER: lambda model, _: EdgeTamTrackingDecoder(model),
        MASK_PROMPT: lambda model, _: MaskPrompt(model),
    }
)
"""EdgeTAM's module of each role."""
