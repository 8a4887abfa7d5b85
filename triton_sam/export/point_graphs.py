"""What the SAM1 and SAM2 decoder graphs share: prompts to tokens, and the two-way transformer.

The official submodules are called with the official weights; only the glue between them is written anew, with attention
masks and batch broadcasting that the official code lacks. Reference: segment_anything.modeling.{prompt_encoder,
mask_decoder,transformer} and sam2.modeling.sam of the same names.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..families.base import LABEL_NO_POINT

LABEL_PADDING = -1


class PointDecoder(nn.Module):
    """Prompt encoder and mask decoder of an official model.

    The image side keeps its own batch dimension (1 or P) and is broadcast against the P prompts where they meet.

    Args:
        prompt_encoder: the official PromptEncoder.
        mask_decoder: the official MaskDecoder.
    """

    def __init__(self, prompt_encoder: Any, mask_decoder: Any) -> None:
        super().__init__()
        self.prompt_encoder = prompt_encoder
        self.decoder = mask_decoder

    def _embed_points(self, coords: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ((P,N+1,C) embeddings with the padding token last, (P,N+1) which of them exist).

        The official predictors append the padding token to lists of points, but a call without any point and box (a
        mask alone) has no list and thus no padding token.
        """
        encoder = self.prompt_encoder
        height, width = encoder.input_image_size
        prompts = coords.shape[0]
        # +0.5: coordinates name pixels, the encoding wants their centres.
        coords = (coords + 0.5) / torch.tensor([width, height], dtype=coords.dtype, device=coords.device)
        coords = torch.cat([coords, coords.new_zeros(prompts, 1, 2)], dim=1)
        labels = torch.cat([labels, labels.new_full((prompts, 1), LABEL_PADDING)], dim=1)

        position = encoder.pe_layer._pe_encoding(coords)  # noqa: SLF001 - without the scaling around it
        offsets = torch.cat(
            [encoder.not_a_point_embed.weight, *(embedding.weight for embedding in encoder.point_embeddings)]
        )
        row = labels.clamp(LABEL_PADDING, len(encoder.point_embeddings) - 1).to(torch.int64) - LABEL_PADDING
        is_padding = (labels == LABEL_PADDING).unsqueeze(-1)
        embedded = torch.where(is_padding, torch.zeros_like(position), position) + offsets[row]

        exists = labels != LABEL_NO_POINT
        any_point = exists.to(torch.int64).sum(dim=1, keepdim=True) > 1  # the padding itself counts for one
        return embedded, exists & any_point

    def _embed_mask(self, mask: Tensor, has_mask: Tensor) -> Tensor:
        """Return the (1 or P,C,h*w) dense prompt: the embedded mask, or the learned "no mask" where has_mask is 0.

        The choice is made among the weights of the last, 1 x 1, convolution, which are few, and not among places: its
        bias is the weight of one more channel, of ones.
        """
        *layers, last = self.prompt_encoder.mask_downscaling
        hidden = nn.Sequential(*layers)(mask)
        ones = hidden[:, :1] * 0 + 1  # ones_like would be a constant of the one mask that is traced
        hidden = torch.cat([hidden, ones], dim=1).flatten(2)
        weights, no_mask = last.weight.flatten(1), self.prompt_encoder.no_mask_embed.weight.reshape(-1, 1)
        embed = torch.cat([weights, last.bias.unsqueeze(1)], dim=1)
        nothing = torch.cat([torch.zeros_like(weights), no_mask], dim=1)
        return torch.where(has_mask.reshape(-1, 1, 1) > 0.5, embed, nothing) @ hidden

    def _tokens(self, heads: list[Tensor], points: Tensor, is_point: Tensor) -> tuple[Tensor, Tensor]:
        """Return ((P,T,C) output tokens and points, (P,1,1,T) attention bias: 0, or -inf where nothing is).

        Args:
            heads: (n,C) weights of the learned output tokens, in order.
            points: (P,N+1,C).
            is_point: (P,N+1).
        """
        output_tokens = torch.cat(heads).unsqueeze(0)
        count = output_tokens.shape[1]
        prompts = points.shape[0]
        tokens = torch.cat([output_tokens.expand(prompts, -1, -1), points], dim=1)
        bias = torch.where(is_point, 0.0, -math.inf).to(points.dtype)
        bias = torch.cat([bias.new_zeros(prompts, count), bias], dim=1)
        return tokens, bias.unsqueeze(1).unsqueeze(1)

    def _positions(self) -> Tensor:
        """Return the (1,C,h,w) encoding of the places of the image."""
        positions: Tensor = self.prompt_encoder.get_dense_pe()
        return positions

    def _transform(self, image: Tensor, tokens: Tensor, ignored: Tensor) -> tuple[Tensor, Tensor]:
        """Run the two-way transformer; see TwoWayTransformer of the official transformer modules.

        Args:
            image: (1 or P,C,h*w).
            tokens: (P,T,C).
            ignored: (P,1,1,T) bias that hides tokens from every attention that reads tokens.

        Returns:
            (P,T,C) tokens, of which the ignored ones are meaningless, and (P,h*w,C) image.
        """
        transformer = self.decoder.transformer
        queries, keys = tokens, image.transpose(1, 2)
        key_pe = self._positions().flatten(2).squeeze(0)
        for layer in transformer.layers:
            if layer.skip_first_layer_pe:
                queries = attend(layer.self_attn, queries, queries, queries, ignored)
            else:
                q = queries + tokens
                queries = queries + attend(layer.self_attn, q, q, queries, ignored)
            queries = layer.norm1(queries)

            attended = attend_to_image(layer.cross_attn_token_to_image, queries + tokens, keys, key_pe)
            queries = layer.norm2(queries + attended)
            queries = layer.norm3(queries + layer.mlp(queries))

            attended = attend_from_image(
                layer.cross_attn_image_to_token, keys, key_pe, queries + tokens, queries, ignored
            )
            keys = layer.norm4(keys + attended)

        attended = attend_to_image(transformer.final_attn_token_to_image, queries + tokens, keys, key_pe)
        return transformer.norm_final_attn(queries + attended), keys

    def _masks(self, mask_tokens: Tensor, features: Tensor) -> Tensor:
        """Return (P,M,h,w) logits: for each of M mask tokens (P,M,C) a weighted sum of features (P,c,h,w)."""
        weights: Any = torch.stack(
            [mlp(mask_tokens[:, i]) for i, mlp in enumerate(self.decoder.output_hypernetworks_mlps)], dim=1
        )
        masks: Tensor = (weights @ features.flatten(2)).unflatten(2, features.shape[2:])
        return masks


def attend(attention: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multi-head attention with the weights of an official Attention module of the two-way transformer.

    softmax(q k^T / sqrt(d) + bias) v. Batch dimensions of q and k may be 1 and P: they are broadcast, never repeated.

    Args:
        attention: the official module.
        q: (B1,Tq,C).
        k: (B2,Tk,C).
        v: (B2,Tk,C).
        bias: added to the logits, broadcast to (B,heads,Tq,Tk).

    Returns:
        (B,Tq,C).
    """
    heads = attention.num_heads
    scale = (attention.internal_dim // heads) ** -0.5
    q = attention.q_proj(q).unflatten(2, (heads, -1)).transpose(1, 2)
    k = attention.k_proj(k).unflatten(2, (heads, -1)).permute(0, 2, 3, 1)
    v = attention.v_proj(v).unflatten(2, (heads, -1)).transpose(1, 2)
    logits = (q * scale) @ k
    if bias is not None:
        logits = logits + bias
    attended: Tensor = attention.out_proj((logits.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
    return attended


def attend_to_image(attention: Any, q: Tensor, image: Tensor, position: Tensor) -> Tensor:
    """Attention of a few tokens to all places of the image: attend(attention, q, image + position, image), regrouped.

    The projections of keys and values are moved to the side of the tokens, of which there are fewer:
    q (X Wk)^T = (q Wk^T) X^T, and a (X Wv) = (a X) Wv. That is half the work for a click (8 tokens, 8 heads), as much
    at about 16 tokens. The positions' part of the keys is a constant. Rounding differs in the last digits.

    Args:
        attention: the official module.
        q: (P,T,C) tokens.
        image: (1 or P,L,C) places.
        position: (C,L) encoding of the places, a constant.

    Returns:
        (P,T,C).
    """
    heads = attention.num_heads
    scale = (attention.internal_dim // heads) ** -0.5
    q = attention.q_proj(q).unflatten(2, (heads, -1)).transpose(1, 2) * scale
    key_weights = attention.k_proj.weight.unflatten(0, (heads, -1))
    logits = _by_head((q @ key_weights).flatten(1, 2) @ image.transpose(1, 2), heads)
    logits = logits + q @ _project(attention.k_proj, position, heads)
    # The rows of a softmax sum up to 1, so that the bias of the values comes out as it is.
    seen = _by_head(logits.softmax(dim=-1).flatten(1, 2) @ image, heads)
    values = seen @ attention.v_proj.weight.unflatten(0, (heads, -1)).transpose(1, 2)
    attended: Tensor = attention.out_proj(values.transpose(1, 2).flatten(2) + attention.v_proj.bias)
    return attended


def attend_from_image(attention: Any, image: Tensor, position: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention of all places of the image to a few tokens: attend(attention, image + position, k, v, bias), regrouped.

    As in attend_to_image(), projections of the places are moved to the side of the tokens.

    Args:
        attention: the official module.
        image: (1 or P,L,C) places.
        position: (C,L) encoding of the places, a constant.
        k: (P,T,C) tokens.
        v: (P,T,C) tokens.
        bias: (P,1,1,T) added to the logits.

    Returns:
        (P,L,C).
    """
    heads = attention.num_heads
    scale = (attention.internal_dim // heads) ** -0.5
    k = attention.k_proj(k).unflatten(2, (heads, -1)).transpose(1, 2) * scale
    v = attention.v_proj(v).unflatten(2, (heads, -1)).transpose(1, 2)
    query_weights = attention.q_proj.weight.unflatten(0, (heads, -1))
    logits = _by_head((k @ query_weights).flatten(1, 2) @ image.transpose(1, 2), heads)
    logits = logits + k @ _project(attention.q_proj, position, heads) + bias.transpose(2, 3)
    weights = logits.softmax(dim=2).flatten(1, 2)
    written = (v @ attention.out_proj.weight.transpose(0, 1).unflatten(0, (heads, -1))).flatten(1, 2)
    # The weights of each head sum up to 1, so that the bias may be shared out among what they weigh.
    attended: Tensor = weights.transpose(1, 2) @ (written + attention.out_proj.bias / heads)
    return attended


def channel_norm(norm: Any, x: Tensor) -> Tensor:
    """Normalise (B,C,h,w) over the channels, as the official LayerNorm2d.

    Means are matrix products, which read the channels of many places at a time; ONNX Runtime's ReduceMean does not.
    """
    channels = x.shape[1]
    flat = x.flatten(2)
    average = torch.full((1, 1, channels), 1 / channels, device=x.device)
    centred = flat - average @ flat
    variance = average @ (centred * centred)
    scaled = centred * (variance + norm.eps).rsqrt()
    result: Tensor = (scaled * norm.weight.unsqueeze(1) + norm.bias.unsqueeze(1)).unflatten(2, x.shape[2:])
    return result


def _project(projection: Any, position: Tensor, heads: int) -> Tensor:
    """Return the (heads,d,L) projection of positions (C,L), bias included; a constant of the graph."""
    projected: Tensor = projection.weight @ position + projection.bias.unsqueeze(1)
    return projected.reshape(heads, -1, position.shape[1])


def _by_head(rows: Any, heads: int) -> Tensor:
    """Turn (P,heads*T,n) into (P,heads,T,n)."""
    split: Tensor = rows.unflatten(1, (heads, -1))
    return split
