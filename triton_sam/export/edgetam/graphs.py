"""EdgeTAM's two graphs as modules. They compute the same as transformers' EdgeTamModel.

Reference: transformers 5, models/edgetam/modeling_edgetam.py.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from sam2.modeling.sam.mask_decoder import MaskDecoder
from sam2.modeling.sam.prompt_encoder import PromptEncoder
from sam2.modeling.sam.transformer import TwoWayTransformer
from torch import Tensor, nn

from ...families.edgetam import EdgeTam
from ..sam2.graphs import Sam2Decoder
from ..sam3.graphs import Sam3Encoder
from .names import of_meta_name


class EdgeTamEncoder(Sam3Encoder):
    """Computes the embeddings of images, as EdgeTamModel.get_image_embeddings does.

    Args:
        model: a transformers EdgeTamVideoModel or EdgeTamModel; it is not changed.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model, add_no_memory=True)
        self.vision = fused(self.vision)
        self.register_buffer("mean", torch.tensor(EdgeTam.pixel_mean).reshape(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(EdgeTam.pixel_std).reshape(1, 3, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode images.

        Args:
            image: (B,3,S,S) RGB in 0..1; S is the image size in pixels.

        Returns:
            image_embeddings (B,256,S/16,S/16), high_res_feats_0 (B,32,S/4,S/4), high_res_feats_1 (B,64,S/8,S/8).
        """
        fine, middle, coarse = super().forward((image - self.mean) / self.std)
        return coarse, fine, middle


def fused(vision: nn.Module) -> nn.Module:
    """Return a copy of a vision encoder in which each convolution contains the batch normalisation behind it.

    RepViT is trained with two convolutions and the identity side by side, and timm joins them into one for inference.
    """
    result = copy.deepcopy(vision)
    for parent in list(result.modules()):
        for name, child in parent.named_children():
            # The parts of a RepVggDw are found as well, but then they are no longer in use.
            if hasattr(child, "fuse"):
                fusible: Any = child
                setattr(parent, name, fusible.fuse())
    return result


class EdgeTamDecoder(Sam2Decoder):
    """Computes masks from embeddings and prompts, as EdgeTamModel.forward does.

    EdgeTAM's decoder is SAM2's. So the modules of the sam2 package, which Sam2Decoder calls, get EdgeTAM's weights.

    Args:
        model: a transformers EdgeTamVideoModel or EdgeTamModel.
    """

    image_position: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(_Sam2Heads(model))
        # transformers has a buffer of its own for the positions in the image.
        self.register_buffer("image_position", model.get_image_wide_positional_embeddings(), persistent=False)

    def _positions(self) -> Tensor:
        return self.image_position


class _Sam2Heads(nn.Module):
    """The prompt encoder and the mask decoder of a SAM2Base, with the weights of an EdgeTamModel."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        prompts, masks = model.config.prompt_encoder_config, model.config.mask_decoder_config
        channels = prompts.hidden_size
        self.sam_prompt_encoder = PromptEncoder(
            embed_dim=channels,
            image_embedding_size=model.prompt_encoder.image_embedding_size,
            input_image_size=(prompts.image_size, prompts.image_size),
            mask_in_chans=prompts.mask_input_channels,
        )
        self.sam_mask_decoder = MaskDecoder(
            transformer_dim=channels,
            transformer=TwoWayTransformer(
                depth=masks.num_hidden_layers,
                embedding_dim=channels,
                num_heads=masks.num_attention_heads,
                mlp_dim=masks.mlp_dim,
                attention_downsample_rate=masks.attention_downsample_rate,
            ),
            num_multimask_outputs=masks.num_multimask_outputs,
            iou_head_depth=masks.iou_head_depth,
            iou_head_hidden_dim=masks.iou_head_hidden_dim,
            use_high_res_features=True,
            iou_prediction_use_sigmoid=True,
            dynamic_multimask_via_stability=masks.dynamic_multimask_via_stability,
            dynamic_multimask_stability_delta=masks.dynamic_multimask_stability_delta,
            dynamic_multimask_stability_thresh=masks.dynamic_multimask_stability_thresh,
            pred_obj_scores=True,
            pred_obj_scores_mlp=True,
        )
        state = model.state_dict()
        self.load_state_dict({name: of_meta_name(state, name) for name in self.state_dict()})
        self.eval().requires_grad_(False)
