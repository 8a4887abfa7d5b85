"""The common parts of SAM1's and SAM2's decoder graphs: the embedding of prompts, and the two-way transformer.

The graphs call the official submodules with their weights. Only the code between the submodules is our own, because the
official code supports neither attention masks nor broadcasting over batches. Reference:
segment_anything.modeling.{prompt_encoder,mask_decoder,transformer}, and the modules of the same names in
sam2.modeling.sam.

In shapes, P is the number of prompts (objects), N of points, T of tokens, L of image positions (h*w), C of channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from ..families.base import LABEL_NO_POINT
from ..families.tables import ModelSpec
from . import tracing

LABEL_PADDING = -1
"""The label of the padding token, which the official prompt encoders append to the points."""


class PointDecoder(nn.Module):
    """The prompt encoder and the mask decoder of an official model.

    Image features keep their own batch dimension (1 or P), and are broadcast to the P prompts where needed.
    """

    def __init__(self, prompt_encoder: Any, mask_decoder: Any) -> None:
        super().__init__()
        self.prompt_encoder = prompt_encoder
        self.decoder = mask_decoder

    def _embed_points(self, coords: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Embed points and the padding token.

        The official predictors append the padding token to the points, but not to a prompt with only a mask.

        Args:
            coords: (P,N,2) x, y in pixels of the model's frame.
            labels: (P,N) labels; LABEL_NO_POINT marks a point that does not exist.

        Returns:
            (P,N+1,C) embeddings, the padding token last, and (P,N+1) bool: whether each embedding exists.
        """
        encoder = self.prompt_encoder
        height, width = encoder.input_image_size
        prompts = coords.shape[0]
        # Coordinates are those of pixels, but the encoding takes the centres of pixels, so 0.5 is added.
        coords = (coords + 0.5) / torch.tensor([width, height], dtype=coords.dtype, device=coords.device)
        coords = torch.cat([coords, coords.new_zeros(prompts, 1, 2)], dim=1)
        labels = torch.cat([labels, labels.new_full((prompts, 1), LABEL_PADDING)], dim=1)

        position = encoder.pe_layer._pe_encoding(coords)  # noqa: SLF001 - the public method also scales coordinates
        offsets = torch.cat(
            [encoder.not_a_point_embed.weight, *(embedding.weight for embedding in encoder.point_embeddings)]
        )
        row = labels.clamp(LABEL_PADDING, len(encoder.point_embeddings) - 1).to(torch.int64) - LABEL_PADDING
        is_padding = (labels == LABEL_PADDING).unsqueeze(-1)
        embedded = torch.where(is_padding, torch.zeros_like(position), position) + offsets[row]

        exists = labels != LABEL_NO_POINT
        any_point = exists.to(torch.int64).sum(dim=1, keepdim=True) > 1  # the padding token always exists here
        return embedded, exists & any_point

    def _embed_mask(self, mask: Tensor, has_mask: Tensor) -> Tensor:
        """Return the (1 or P,C,h*w) dense prompt: the embedded mask, or the learned "no mask" where has_mask is 0.

        Instead of selecting at every position of the image, this selects the few weights of the last convolution. That
        convolution is 1 x 1, and its bias becomes the weight of an additional channel of ones.
        """
        *layers, last = self.prompt_encoder.mask_downscaling
        hidden = nn.Sequential(*layers)(mask)
        ones = hidden[:, :1] * 0 + 1  # torch would trace ones_like as a constant for a batch of 1
        hidden = torch.cat([hidden, ones], dim=1).flatten(2)
        weights, no_mask = last.weight.flatten(1), self.prompt_encoder.no_mask_embed.weight.reshape(-1, 1)
        embed = torch.cat([weights, last.bias.unsqueeze(1)], dim=1)
        nothing = torch.cat([torch.zeros_like(weights), no_mask], dim=1)
        return torch.where(has_mask.reshape(-1, 1, 1) > 0.5, embed, nothing) @ hidden

    def _tokens(self, heads: list[Tensor], points: Tensor, is_point: Tensor) -> tuple[Tensor, Tensor]:
        """Concatenate the output tokens and the points.

        Returns:
            (P,T,C) tokens, and (P,1,1,T) attention bias: 0 for existing tokens, -inf for others.
        """
        output_tokens = torch.cat(heads).unsqueeze(0)
        count = output_tokens.shape[1]
        prompts = points.shape[0]
        tokens = torch.cat([output_tokens.expand(prompts, -1, -1), points], dim=1)
        bias = torch.where(is_point, 0.0, -math.inf).to(points.dtype)
        bias = torch.cat([bias.new_zeros(prompts, count), bias], dim=1)
        return tokens, bias.unsqueeze(1).unsqueeze(1)

    def _positions(self) -> Tensor:
        """Return the (1,C,h,w) encoding of the positions in the image."""
        positions: Tensor = self.prompt_encoder.get_dense_pe()
        return positions

    def _transform(self, image: Tensor, tokens: Tensor, ignored: Tensor) -> tuple[Tensor, Tensor]:
        """Run the two-way transformer; see TwoWayTransformer of the official transformer modules.

        Args:
            image: (1 or P,C,h*w) embeddings with the dense prompt added.
            ignored: (P,1,1,T) bias from _tokens(), which masks tokens in every attention to tokens.

        Returns:
            (P,T,C) tokens, of which the masked ones are meaningless, and (P,h*w,C) image features.
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
        """Return (P,M,h,w) mask logits: one weighted sum of the features (P,c,h,w) for each mask token of (P,M,C)."""
        masks: Any = self.mask_weights(mask_tokens) @ features.flatten(2)
        unflattened: Tensor = masks.unflatten(2, features.shape[2:])
        return unflattened

    def mask_weights(self, mask_tokens: Tensor) -> Tensor:
        """Return the weights (P,M,c) of the features in the logits, for each mask token of (P,M,C)."""
        mlps = self.decoder.output_hypernetworks_mlps
        return torch.stack([mlp(mask_tokens[:, i]) for i, mlp in enumerate(mlps)], dim=1)


def attend(attention: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute multi-head attention, softmax(q k^T / sqrt(d) + bias) v, with the weights of an official module.

    The batch dimensions B1 and B2 (for example, 1 and P) are broadcast, not repeated.

    Args:
        bias: added to the logits; must broadcast to (B,heads,Tq,Tk).

    Returns:
        (B,Tq,C) output of the output projection.
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
    """Compute attend(attention, q, image + position, image) in an order that is faster for few tokens.

    The projections of keys and values are applied to the few tokens instead of the positions in the image:
    q (X Wk)^T = (q Wk^T) X^T, and a (X Wv) = (a X) Wv. This halves the work for a click (8 tokens, 8 heads), and breaks
    even at about 16 tokens. The projection of ``position`` is a constant of the graph. The two orders differ only in
    rounding.

    Args:
        position: (C,L) encoding of the positions in the image, a constant.

    Returns:
        (P,T,C) output of the output projection.
    """
    heads = attention.num_heads
    scale = (attention.internal_dim // heads) ** -0.5
    q = attention.q_proj(q).unflatten(2, (heads, -1)).transpose(1, 2) * scale
    key_weights = attention.k_proj.weight.unflatten(0, (heads, -1))
    logits = _by_head((q @ key_weights).flatten(1, 2) @ image.transpose(1, 2), heads)
    logits = logits + q @ _project(attention.k_proj, position, heads)
    # The rows of a softmax sum to 1, so the bias of the value projection can be added after the weighted sum.
    seen = _by_head(logits.softmax(dim=-1).flatten(1, 2) @ image, heads)
    values = seen @ attention.v_proj.weight.unflatten(0, (heads, -1)).transpose(1, 2)
    attended: Tensor = attention.out_proj(values.transpose(1, 2).flatten(2) + attention.v_proj.bias)
    return attended


def attend_from_image(attention: Any, image: Tensor, position: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Compute attend(attention, image + position, k, v, bias) in an order that is faster for few tokens.

    As in attend_to_image(), the projections are applied to the tokens instead of the positions in the image.

    Args:
        position: (C,L) encoding of the positions in the image, a constant.
        k: (P,T,C) tokens, the input of the key projection.
        v: (P,T,C) tokens, the input of the value projection.

    Returns:
        (P,L,C) output of the output projection.
    """
    heads = attention.num_heads
    scale = (attention.internal_dim // heads) ** -0.5
    k = attention.k_proj(k).unflatten(2, (heads, -1)).transpose(1, 2) * scale
    v = attention.v_proj(v).unflatten(2, (heads, -1)).transpose(1, 2)
    query_weights = attention.q_proj.weight.unflatten(0, (heads, -1))
    logits = _by_head((k @ query_weights).flatten(1, 2) @ image.transpose(1, 2), heads)
    logits = logits + k @ _project(attention.q_proj, position, heads) + bias.transpose(2, 3)
    weights = logits.softmax(dim=2).flatten(1, 2)
    projected = (v @ attention.out_proj.weight.transpose(0, 1).unflatten(0, (heads, -1))).flatten(1, 2)
    # The weights of each head sum to 1, so each head can add its share of the bias before the weighted sum.
    attended: Tensor = weights.transpose(1, 2) @ (projected + attention.out_proj.bias / heads)
    return attended


def channel_norm(norm: Any, x: Tensor) -> Tensor:
    """Normalise (B,C,h,w) over the channels, as the official LayerNorm2d does.

    Means are computed as matrix products, because in ONNX Runtime these process many positions at a time, unlike its
    ReduceMean.
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
    """Return the (heads,d,L) projection of the (C,L) position encoding, with its bias; a constant of the graph."""
    projected: Tensor = projection.weight @ position + projection.bias.unsqueeze(1)
    return projected.reshape(heads, -1, position.shape[1])


def _by_head(rows: Any, heads: int) -> Tensor:
    """Reshape (P,heads*T,n) to (P,heads,T,n)."""
    split: Tensor = rows.unflatten(1, (heads, -1))
    return split


def trace_decoder(decoder: nn.Module, spec: ModelSpec, embeddings: Sequence[Tensor], side: int) -> onnx.ModelProto:
    """Trace a decoder of points, for any number of prompts, points and images.

    The trace uses a batch of 1 for images and masks, which is broadcast. Both batches become dynamic afterwards.

    Args:
        embeddings: the encoder's outputs for one image (1,C,h,w), on the decoder's device.
    """
    prompts, points = torch.export.Dim("prompts", min=1), torch.export.Dim("points", min=0)
    device = embeddings[0].device
    example = [
        *embeddings,
        torch.rand(2, 3, 2, device=device) * side,
        torch.ones(2, 3, device=device),
        torch.zeros(1, 1, side // 4, side // 4, device=device),
        torch.zeros(1, device=device),
    ]
    free = {0: prompts, 1: points}
    graph = tracing.trace(decoder, spec, example, {"point_coords": free, "point_labels": free})
    tracing.free_batch(graph)
    return graph
