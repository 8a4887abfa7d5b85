"""SAM2's modules with the weights of a transformers video model that has SAM2's decoder and memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sam2.modeling.memory_attention import MemoryAttention, MemoryAttentionLayer
from sam2.modeling.memory_encoder import CXBlock, Fuser, MaskDownSampler, MemoryEncoder
from sam2.modeling.position_encoding import PositionEmbeddingSine
from sam2.modeling.sam.transformer import RoPEAttention
from sam2.modeling.sam2_base import SAM2Base
from torch import Tensor, nn

from .checkpoints import of_meta_name, sam2_name
from .graphs import Sam2Decoder


def sam2_of(model: Any, transformers_name: Callable[[str], str] = sam2_name) -> Any:
    """Return a SAM2Base without an image encoder, with the weights of a transformers video model.

    It also has the model's pixel positions (``image_position``).

    Args:
        transformers_name: returns the model's name for Meta's name of a weight.
    """
    base = _Sam2(model)
    state = model.state_dict()
    base.load_state_dict({name: of_meta_name(state, name, transformers_name) for name in base.state_dict()})
    base.register_buffer("image_position", model.get_image_wide_positional_embeddings(), persistent=False)
    return base.eval().requires_grad_(False)


class _Sam2(SAM2Base):  # type: ignore[misc]
    """SAM2Base with the settings of a transformers model, without an image encoder."""

    def __init__(self, model: Any) -> None:
        config = model.config
        neck = SimpleNamespace(d_model=model.hidden_dim, position_encoding=PositionEmbeddingSine(model.hidden_dim))
        super().__init__(
            _NoEncoder(neck),
            _memory_attention(config, model.hidden_dim),
            _memory_encoder(config),
            num_maskmem=config.num_maskmem,
            image_size=model.image_size,
            backbone_stride=model.image_size // model.prompt_encoder.image_embedding_size[0],
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
            proj_tpos_enc_in_obj_ptrs=config.enable_temporal_pos_encoding_for_object_pointers,
            no_obj_embed_spatial=config.enable_occlusion_spatial_embedding,
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
    """A placeholder for the image encoder; only the neck's settings are read."""

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

    # The two models name the network of a layer differently.
    network = "mlp" if hasattr(config, "memory_attention_mlp_hidden_size") else "feed_forward"
    layer = MemoryAttentionLayer(
        activation=getattr(config, f"memory_attention_{network}_hidden_act"),
        cross_attention=attention(rope_k_repeat=True, kv_in_dim=config.memory_encoder_output_channels),
        d_model=channels,
        dim_feedforward=getattr(config, f"memory_attention_{network}_hidden_size"),
        dropout=0.0,
        pos_enc_at_attn=False,
        pos_enc_at_cross_attn_keys=True,
        pos_enc_at_cross_attn_queries=False,
        self_attention=attention(),
    )
    found: nn.Module = MemoryAttention(channels, True, layer, config.memory_attention_num_layers)
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
    encoder: nn.Module = MemoryEncoder(
        channels, sampler, fuser, PositionEmbeddingSine(channels), config.memory_encoder_hidden_size
    )
    return encoder


class PixelPositions(Sam2Decoder):
    """A decoder with the pixel positions in a separate buffer, as in transformers."""

    image_position: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.register_buffer("image_position", model.image_position.clone(), persistent=False)

    def _positions(self) -> Tensor:
        return self.image_position
