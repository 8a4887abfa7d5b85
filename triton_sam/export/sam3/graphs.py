"""The two SAM3 tracker graphs as modules, with the names, shapes and ranges of the published ONNX files.

The graphs call the submodules of transformers' Sam3TrackerModel with their weights. Only the code between them is our
own: it supports prompts of different lengths, and several images with several prompts each, in one batch.
Reference: transformers 5, models/sam3_tracker/modeling_sam3_tracker.py.

In shapes, B is the number of images, P of prompts (objects) on each, N of points, T of tokens, and C of channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...families.base import LABEL_NO_POINT
from ...families.sam3 import LABEL_NO_POINT_IN_TRANSFORMERS
from ..point_graphs import LABEL_PADDING


class Sam3Encoder(nn.Module):
    """Computes the embeddings of images, as Sam3TrackerModel.get_image_embeddings does.

    Args:
        add_no_memory: add no_memory_embedding to the coarsest feature map, as Meta's code does. transformers adds it to
            a feature map that it then discards, and the published ONNX files follow transformers.
    """

    def __init__(self, model: Any, add_no_memory: bool = False) -> None:
        super().__init__()
        self.vision = model.vision_encoder
        self.conv_s0, self.conv_s1 = model.mask_decoder.conv_s0, model.mask_decoder.conv_s1
        self.no_memory = model.no_memory_embedding if add_no_memory else None

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """Encode images.

        Returns:
            image_embeddings.0 (B,32,288,288), .1 (B,64,144,144), .2 (B,256,72,72).
        """
        fine, middle, coarse = self.vision(pixel_values, return_dict=True).fpn_hidden_states[:3]
        return self.finish(fine, middle, coarse)

    def finish(self, fine: Tensor, middle: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the embeddings from the three feature maps of the neck."""
        if self.no_memory is not None:
            coarse = coarse + self.no_memory.reshape(1, -1, 1, 1)
        return self.conv_s0(fine), self.conv_s1(middle), coarse


class EncoderWithStates(Sam3Encoder):
    """Computes the embeddings of images, and what ConceptEncoder needs of the same pass of the backbone."""

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of Sam3Encoder, and backbone_states (B,C,72,72); see Sam3VisionModel.forward."""
        hidden = self.vision.backbone(pixel_values).last_hidden_state
        side = pixel_values.shape[-1] // self.vision.config.backbone_config.patch_size
        states = hidden.view(hidden.shape[0], side, side, -1).permute(0, 3, 1, 2)
        return (*self.finish(*self.vision.neck(states)[0][:3]), states)


class Sam3Decoder(nn.Module):
    """Computes three candidate masks for each prompt, as Sam3TrackerModel.forward does with multimask_output=True."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.prompts, self.decoder = model.prompt_encoder, model.mask_decoder
        self.register_buffer("image_position", model.get_image_wide_positional_embeddings(), persistent=False)

    image_position: Tensor

    def forward(
        self,
        embeddings_0: Tensor,
        embeddings_1: Tensor,
        embeddings_2: Tensor,
        input_points: Tensor,
        input_labels: Tensor,
        input_boxes: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decode P prompts on each of B images.

        Args:
            input_points: (B,P,N,2) x, y in pixels of the 1008x1008 frame, without the shift of 0.5 to pixel centres; N
                may be 0.
            input_labels: (B,P,N) int64: 0 background, 1 foreground, -1 padding, -2 or -10 no point.
            input_boxes: (B,M,4) x1, y1, x2, y2 in pixels of the frame; M is P or 0.

        Returns:
            iou_scores (B,P,3), pred_masks (B,P,3,288,288) logits, object_score_logits (B,P,1).
        """
        decoder = self.decoder
        points, is_point = self._embed_points(input_points, input_labels)
        corners, is_corner = self._embed_boxes(input_boxes, input_points.shape[1])
        padding, is_padding = self._embed_padding(input_labels)
        heads = torch.cat([decoder.obj_score_token.weight, decoder.iou_token.weight, decoder.mask_tokens.weight])
        images, prompts = input_points.shape[:2]
        heads = heads.expand(images, prompts, -1, -1)
        tokens = torch.cat([heads, points, corners, padding], dim=2)
        exists = torch.cat([torch.ones_like(heads[..., 0], dtype=torch.bool), is_point, is_corner, is_padding], dim=2)
        bias = torch.where(exists, 0.0, -math.inf).to(tokens.dtype).unsqueeze(2).unsqueeze(2)

        dense = self.prompts.no_mask_embed.weight.reshape(1, -1, 1, 1)
        tokens, image = self._transform(embeddings_2 + dense, tokens, bias)
        masks = self._masks(tokens[:, :, 3:], image, embeddings_0, embeddings_1)
        scores = decoder.iou_prediction_head(tokens[:, :, 1])[..., 1:]
        return scores, masks, decoder.pred_obj_score_head(tokens[:, :, 0])

    def _position(self, coords: Tensor) -> Tensor:
        """Encode (...,2) coordinates of pixels; adding 0.5 gives the pixel centres."""
        encoded: Tensor = self.prompts.shared_embedding((coords + 0.5) / self.prompts.input_image_size)
        return encoded

    def _embed_points(self, coords: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B,P,N,C) tokens and (B,P,N) whether they exist; see Sam3TrackerPromptEncoder._embed_points."""
        encoder = self.prompts
        padding = encoder.not_a_point_embed.weight
        embedded = torch.where((labels == LABEL_PADDING).unsqueeze(-1), padding, self._position(coords))
        kind = encoder.point_embed(labels.clamp(0, encoder.point_embed.num_embeddings - 1))
        embedded = embedded + kind * (labels >= 0).unsqueeze(-1)
        return embedded, (labels != LABEL_NO_POINT) & (labels != LABEL_NO_POINT_IN_TRANSFORMERS)

    def _embed_boxes(self, boxes: Tensor, prompts: int) -> tuple[Tensor, Tensor]:
        """Return (B,P,2,C) tokens and (B,P,2) whether they exist; see Sam3TrackerPromptEncoder._embed_boxes.

        The same graph must work with M = P and M = 0 boxes, so this appends P empty boxes and keeps the first P.
        """
        images, given = boxes.shape[:2]
        filled: Any = torch.cat([boxes, boxes.new_zeros(images, prompts, 4)], dim=1)[:, :prompts]
        embedded = self._position(filled.unflatten(2, (2, 2))) + self.prompts.point_embed.weight[2:4]
        exists = torch.arange(prompts, device=boxes.device) < given
        return embedded, exists.reshape(1, -1, 1).expand(images, -1, 2)

    def _embed_padding(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (B,P,1,C) padding token, and (B,P,1) bool: whether it exists.

        transformers has exactly one for each prompt, after the points or after the boxes. It does not exist here if the
        caller sent it as a point with the label -1.
        """
        images, prompts = labels.shape[:2]
        token = self.prompts.not_a_point_embed.weight.expand(images, prompts, 1, -1)
        return token, (labels == LABEL_PADDING).to(torch.int64).sum(dim=2, keepdim=True) == 0

    def _transform(self, image: Tensor, tokens: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Run the two-way transformer; see Sam3TrackerTwoWayTransformer.

        Args:
            bias: (B,P,1,1,T) attention bias: 0 for existing tokens, -inf for others.

        Returns:
            (B,P,T,C) tokens, of which the masked ones are meaningless, and (B,P,h*w,C) image features.
        """
        transformer = self.decoder.transformer
        queries, keys = tokens, image.flatten(2).transpose(1, 2).unsqueeze(1)
        key_pe = self.image_position.flatten(2).transpose(1, 2).unsqueeze(1)
        for layer in transformer.layers:
            if layer.skip_first_layer_pe:
                queries = attend(layer.self_attn, queries, queries, queries, bias)
            else:
                q = queries + tokens
                queries = queries + attend(layer.self_attn, q, q, queries, bias)
            queries = layer.layer_norm1(queries)

            attended = attend(layer.cross_attn_token_to_image, queries + tokens, keys + key_pe, keys)
            queries = layer.layer_norm2(queries + attended)
            queries = layer.layer_norm3(queries + layer.mlp(queries))

            attended = attend(layer.cross_attn_image_to_token, keys + key_pe, queries + tokens, queries, bias)
            keys = layer.layer_norm4(keys + attended)

        attended = attend(transformer.final_attn_token_to_image, queries + tokens, keys + key_pe, keys)
        return transformer.layer_norm_final_attn(queries + attended), keys

    def _masks(self, mask_tokens: Tensor, image: Tensor, fine: Tensor, middle: Tensor) -> Tensor:
        """Return (B,P,3,4h,4w) mask logits of the three candidates.

        Args:
            mask_tokens: (B,P,T,C) with the tokens of the three candidates first.
        """
        decoder, (height, width) = self.decoder, self.prompts.image_embedding_size
        images, prompts = image.shape[:2]
        features: Any = image.transpose(2, 3).reshape(-1, image.shape[3], height, width)
        # The feature maps of an image are broadcast to its P prompts, not repeated.
        features = decoder.upscale_conv1(features).unflatten(0, (images, prompts)) + middle.unsqueeze(1)
        features = decoder.activation(decoder.upscale_layer_norm(features.flatten(0, 1)))
        features = decoder.upscale_conv2(features).unflatten(0, (images, prompts)) + fine.unsqueeze(1)
        features = decoder.activation(features)
        networks = decoder.output_hypernetworks_mlps[1:]
        weights: Any = torch.stack([network(mask_tokens[:, :, i]) for i, network in enumerate(networks)], dim=2)
        masks: Tensor = (weights @ features.flatten(3)).unflatten(3, (4 * height, 4 * width))
        return masks


def attend(attention: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute multi-head attention, softmax(q k^T * scaling + bias) v, with the weights of a Sam3TrackerAttention.

    P1 and P2 (for example, 1 and P) are broadcast, not repeated.

    Args:
        bias: added to the logits; must broadcast to (B,P,heads,Tq,Tk).

    Returns:
        (B,P,Tq,C) output of the output projection.
    """
    heads: Any = attention.num_attention_heads
    q = attention.q_proj(q).unflatten(3, (heads, -1)).transpose(2, 3)
    k = attention.k_proj(k).unflatten(3, (heads, -1)).permute(0, 1, 3, 4, 2)
    v = attention.v_proj(v).unflatten(3, (heads, -1)).transpose(2, 3)
    logits = (q * attention.scaling) @ k
    if bias is not None:
        logits = logits + bias
    attended: Tensor = attention.o_proj((logits.softmax(dim=-1) @ v).transpose(2, 3).flatten(3))
    return attended
