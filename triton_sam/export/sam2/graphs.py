"""The two SAM2 graphs as modules. They compute the same as SAM2ImagePredictor, and export to small ONNX graphs.

Attention is ONNX Runtime's operator `MultiHeadAttention`, instead of matrix products and a softmax. The operator does
not store the matrix of all positions by all positions, which takes 256 MiB for the demo model. It takes queries, keys
and values in the layout of their projections, whereas torch's graph transposes each of them.

Reference: SAM2ImagePredictor.set_image and SAM2ImagePredictor._predict, sam2.modeling.sam.mask_decoder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from sam2.modeling.backbones.hieradet import MultiScaleAttention, do_pool
from torch import Tensor, nn

from ...families.sam2 import SAM2
from ..onnx_tools import ONNX_RUNTIME_DOMAIN
from ..point_graphs import PointDecoder, channel_norm


class Sam2Encoder(nn.Module):
    """Computes the embeddings of images, as SAM2ImagePredictor.set_image does."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(SAM2.pixel_mean).reshape(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(SAM2.pixel_std).reshape(1, 3, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode images.

        Args:
            image: (B,3,S,S) RGB in 0..1; S is the image size in pixels.

        Returns:
            image_embeddings (B,256,S/16,S/16), high_res_feats_0 (B,32,S/4,S/4), high_res_feats_1 (B,64,S/8,S/8).
        """
        features = self.model.forward_image((image - self.mean) / self.std)["backbone_fpn"]
        high_res_0, high_res_1, embeddings = features[-3:]
        if self.model.directly_add_no_mem_embed:
            embeddings = embeddings + self.model.no_mem_embed.reshape(1, -1, 1, 1)
        return embeddings, high_res_0, high_res_1


class Sam2Decoder(PointDecoder):
    """Computes masks from embeddings and prompts, as SAM2ImagePredictor._predict does.

    One call gives both the single mask and the three multimasks.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model.sam_prompt_encoder, model.sam_mask_decoder)

    def forward(
        self,
        image_embeddings: Tensor,
        high_res_feats_0: Tensor,
        high_res_feats_1: Tensor,
        point_coords: Tensor,
        point_labels: Tensor,
        mask_input: Tensor,
        has_mask_input: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Decode P prompts of up to N points each, in a frame with a side of S pixels.

        Args:
            point_coords: (P,N,2) x, y in pixels of the frame, without the shift of 0.5 to pixel centres; N may be 0.
            point_labels: (P,N) 0 background, 1 foreground, 2 and 3 corners of a box, -1 padding, -2 no point.
            mask_input: (1 or P,1,S/4,S/4) logits of an earlier prediction.
            has_mask_input: (1 or P,) 1 if mask_input is a prompt, 0 to ignore it.

        Returns:
            The single mask: masks (P,1,S/4,S/4) and iou_predictions (P,1). The multimasks: multimask_masks
            (P,3,S/4,S/4) and multimask_iou_predictions (P,3). Also object_score_logits (P,1). Masks are unclamped
            logits.
        """
        dense = self._embed_mask(mask_input, has_mask_input)
        masks, scores, object_score = self.all_masks(
            image_embeddings.flatten(2) + dense, high_res_feats_0, high_res_feats_1, point_coords, point_labels
        )
        chosen = self._choose_single(masks, scores)
        rows = torch.arange(masks.shape[0], device=masks.device)
        single_mask = masks[rows, chosen].unsqueeze(1)
        single_score = scores[rows, chosen].unsqueeze(1)
        return single_mask, single_score, masks[:, 1:], scores[:, 1:], object_score

    def all_masks(
        self, image: Tensor, high_res_0: Tensor, high_res_1: Tensor, coords: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decode all four masks of each prompt, without the choice of the single mask.

        Args:
            image: (1 or P,256,S/16*S/16) embeddings with the dense prompt added.

        Returns:
            (P,4,S/4,S/4) mask logits and (P,4) scores, both with mask token 0 first, and (P,1) object score logits.
        """
        tokens, features = self.attend_to_prompt(image, coords, labels)
        return self._predict(tokens, features, high_res_0, high_res_1)

    def attend_to_prompt(self, image: Tensor, coords: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Run the transformer on the image and the prompt; arguments as in all_masks().

        Returns:
            (P,T,256) tokens, the learned ones first, and (P,S/16*S/16,256) image features.
        """
        points, is_point = self._embed_points(coords, labels)
        heads = [self.decoder.iou_token.weight, self.decoder.mask_tokens.weight]
        if self.decoder.pred_obj_scores:
            heads.insert(0, self.decoder.obj_score_token.weight)
        tokens, ignored = self._tokens(heads, points, is_point)
        return self._transform(image, tokens, ignored)

    def mask_tokens(self, tokens: Tensor) -> Tensor:
        """Return the (P,4,256) mask tokens from the (P,T,256) tokens of attend_to_prompt()."""
        first = 2 if self.decoder.pred_obj_scores else 1
        return tokens[:, first : first + self.decoder.num_mask_tokens]

    def _predict(
        self, tokens: Tensor, image: Tensor, high_res_0: Tensor, high_res_1: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Turn the transformer's outputs into the masks and scores of all_masks(); see MaskDecoder.predict_masks."""
        decoder = self.decoder
        first = 1 if decoder.pred_obj_scores else 0
        side = self.prompt_encoder.image_embedding_size
        upscale_1, norm, activation_1, upscale_2, activation_2 = decoder.output_upscaling
        features = image.transpose(1, 2).reshape(-1, image.shape[2], *side)
        features = activation_1(channel_norm(norm, upscale_1(features) + high_res_1))
        features = activation_2(upscale_2(features) + high_res_0)

        masks = self._masks(self.mask_tokens(tokens), features)
        scores = decoder.iou_prediction_head(tokens[:, first])
        if decoder.pred_obj_scores:
            return masks, scores, decoder.pred_obj_score_head(tokens[:, 0])
        # Models without this head treat every object as present: 10 is a logit with a sigmoid of about 1.
        return masks, scores, torch.full_like(scores[:, :1], 10.0)

    def _choose_single(self, masks: Tensor, scores: Tensor) -> Tensor:
        """Return the (P,) index of the mask for the single-mask outputs.

        It is mask 0 if that mask is stable: the IoU of its areas with logits above +delta and above -delta reaches the
        threshold. Otherwise it is the other mask with the best score. See MaskDecoder._dynamic_multimask_via_stability.
        """
        decoder = self.decoder
        if not decoder.dynamic_multimask_via_stability:
            return torch.zeros_like(scores[:, 0], dtype=torch.int64)
        delta = decoder.dynamic_multimask_stability_delta
        single = masks[:, 0].flatten(1)
        # FP32 represents counts up to 65536 exactly, and adding floats is faster than adding integers.
        inner = (single > delta).to(torch.float32).sum(dim=1)
        outer = (single > -delta).to(torch.float32).sum(dim=1)
        stable = (outer == 0) | (inner / outer >= decoder.dynamic_multimask_stability_thresh)
        best = scores[:, 1:].argmax(dim=1) + 1
        return torch.where(stable, torch.zeros_like(best), best)


OPERATOR = "MultiHeadAttention"


@contextlib.contextmanager
def fused_attention(model: nn.Module) -> Iterator[None]:
    """Make torch trace every attention block of the image encoder as one node.

    Inside this context, the model can be traced but not run.
    """
    blocks = [module for module in model.modules() if isinstance(module, MultiScaleAttention)]
    for block in blocks:
        block.forward = MethodType(_forward, block)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _forward(self: MultiScaleAttention, x: Tensor) -> Tensor:
    """Compute the same as MultiScaleAttention.forward: (B,H,W,C) to (B,H',W',C').

    H' and W' are half of H and W in blocks that pool the queries. The projections are products of two matrices, with
    all positions as the rows of one: for these, ONNX Runtime adds the bias in the same pass.
    """
    batch, height, width, _ = x.shape
    rows, side = x.flatten(0, 2), self.qkv.out_features // 3
    weights, biases = self.qkv.weight.split(side), self.qkv.bias.split(side)
    projected = [nn.functional.linear(rows, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    query, key, value = (part.reshape(batch, height * width, side) for part in projected)
    if self.q_pool:
        pooled = do_pool(query.reshape(batch, height, width, side), self.q_pool)
        height, width = pooled.shape[1:3]
        query = pooled.reshape(batch, height * width, side)
    attended = attend(query, key, value, self.num_heads)
    projection: Tensor = self.proj(attended.flatten(0, 1))
    return projection.reshape(batch, height, width, -1)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Return a graph node for softmax(q k^T / sqrt(d)) v. It cannot be run.

    Returns:
        (B,positions,heads*v)
    """
    return torch.onnx.ops.symbolic(
        f"{ONNX_RUNTIME_DOMAIN}::{OPERATOR}",
        (query, key, value),
        {"num_heads": heads},
        dtype=query.dtype,
        shape=(*query.shape[:2], value.shape[2]),
        version=1,
    )
