"""The layers of the detector of concepts, in a faster order of computation than the reference's.

They use the weights of transformers' modules, and differ from them only in rounding. Most of the time is spent on the
5184 positions of the image, while a text has few tokens. So projections are applied to the tokens where possible, and
few tensors with a row for each position are transposed. Reference: transformers 5, models/sam3/modeling_sam3.py.

In shapes, P is the number of prompts, T of tokens, L of positions in the image, Q of queries, and C of channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.sam3 import modeling_sam3

from .graphs import attend

_official: Any = modeling_sam3  # it is partly untyped

Bias = tuple[Tensor, Tensor]
"""The parts of a bias of positions, see _place_bias()."""

_PARTS = 9
"""Parts into which the positions are split for an MLP. Its hidden layer has 42 MB; a ninth of that fits in caches."""

_HIDDEN = -30_000.0
"""The bias of tokens that do not exist. It gives a softmax weight of exactly 0, and fp16 can represent it."""


def token_bias(exists: Tensor) -> Tensor:
    """Return the bias (P,1,1,T) for logits from the bool mask (P,T) of existing tokens."""
    return torch.where(exists, 0.0, _HIDDEN)[:, None, None]


def attend_to_tokens(attention: Any, image: Tensor, tokens: Tensor, bias: Tensor) -> Tensor:
    """Compute the attention of image positions to few tokens.

    The projections of queries and outputs are applied to the tokens: (X Wq) k^T = X (k Wq^T)^T, and likewise for the
    outputs.

    Args:
        image: (1 or P,L,C), the input of the query projection.
        tokens: (P,T,C), the input of the key and value projections.

    Returns:
        (P,L,C) output of the output projection.
    """
    heads: Any = attention.num_attention_heads
    keys = attention.k_proj(tokens).unflatten(2, (heads, -1)).transpose(1, 2) * attention.scaling  # (P,heads,T,d)
    values = attention.v_proj(tokens).unflatten(2, (heads, -1)).transpose(1, 2)
    columns = (keys @ attention.q_proj.weight.unflatten(0, (heads, -1))).flatten(1, 2)  # (P,heads*T,C)
    offsets = keys @ attention.q_proj.bias.unflatten(0, (heads, 1, -1)).transpose(1, 2)  # (P,heads,T,1)
    logits = image @ columns.transpose(1, 2) + (offsets.transpose(2, 3) + bias).flatten(1)[:, None]
    weights = logits.unflatten(2, (heads, -1)).softmax(dim=-1).flatten(2)
    outputs = (values @ attention.o_proj.weight.transpose(0, 1).unflatten(0, (heads, -1))).flatten(1, 2)
    attended: Tensor = weights @ outputs + attention.o_proj.bias
    return attended


def attend_to_image(attention: Any, tokens: Tensor, image: Tensor, placed: Tensor) -> Tensor:
    """Compute the attention of few tokens to image positions.

    The projections of keys and values are applied to the tokens: see attend_to_tokens().

    Args:
        placed: (1,L,C), the input of the key projection: the image with the encoding of its positions.

    Returns:
        (P,T,C) output of the output projection.
    """
    heads: Any = attention.num_attention_heads
    queries = attention.q_proj(tokens).unflatten(2, (heads, -1)).transpose(1, 2) * attention.scaling  # (P,heads,T,d)
    rows = (queries @ attention.k_proj.weight.unflatten(0, (heads, -1))).flatten(1, 2)  # (P,heads*T,C)
    # The bias of the keys adds the same number to all logits of a row, which cancels in the softmax.
    seen = ((rows @ placed.transpose(1, 2)).softmax(dim=-1) @ image).unflatten(1, (heads, -1))
    values = seen @ attention.v_proj.weight.unflatten(0, (heads, -1)).transpose(1, 2)
    attended: Tensor = attention.o_proj(values.transpose(1, 2).flatten(2) + attention.v_proj.bias)
    return attended


def linear(layer: Any, states: Tensor) -> Any:
    """Apply a linear layer to (P,L,C) with all positions as rows of one matrix, which saves a pass for the bias."""
    rows: Any = functional.linear(states.flatten(0, 1), layer.weight, layer.bias)
    return rows.unflatten(0, states.shape[:2])


def fuse(layer: Any, states: Tensor, tokens: Tensor, bias: Tensor) -> Tensor:
    """Apply the second and third parts of a Sam3DetrEncoderLayer: attention to the tokens, and the MLP.

    Returns:
        (P,L,C)
    """
    states = states + attend_to_tokens(layer.cross_attn, layer.layer_norm2(states), tokens, bias)
    parts = [
        layer.mlp(part.flatten(0, 1)).unflatten(0, part.shape[:2])
        for part in layer.layer_norm3(states).chunk(_PARTS, dim=1)
    ]
    return states + torch.cat(parts, dim=1)


def encode_examples(layer: Any, tokens: Tensor, bias: Tensor, image: Tensor, placed: Tensor) -> Tensor:
    """Apply a Sam3GeometryEncoderLayer to the tokens (P,T,C) of example boxes; see attend_to_image()."""
    normal = layer.layer_norm1(tokens)
    tokens = tokens + attend(layer.self_attn, normal[None], normal[None], normal[None], bias)[0]
    tokens = tokens + attend_to_image(layer.cross_attn, layer.layer_norm2(tokens), image, placed)
    changed: Tensor = layer.mlp(layer.layer_norm3(tokens))
    return tokens + changed


def decode(decoder: Any, image: Tensor, placed: Tensor, tokens: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Propose instances, as Sam3DetrDecoder.forward does.

    The first layer's inputs are only parameters, so its self-attention and its position bias are computed once for all
    prompts.

    Args:
        image: (P,L,C), the image fused with the prompts.
        placed: (P,L,C), the same with the encoding of the positions.

    Returns:
        Queries (P,Q,C) after the last norm, boxes (P,Q,4) centre x, centre y, width, height, and presence_logits (P,1).
    """
    side = math.isqrt(image.shape[1])
    states = torch.cat([decoder.presence_token.weight, decoder.query_embed.weight])[None]
    boxes = decoder.reference_points.weight.sigmoid()[None]
    queries = states[:, 1:]
    for layer in decoder.layers:
        position = decoder.ref_point_head(decoder.position_encoding.encode_boxes(boxes))
        position = functional.pad(position, (0, 0, 1, 0))  # the presence token has no position
        states = _decode(layer, states, position, (tokens, bias), (image, placed, _place_bias(decoder, boxes, side)))
        queries = decoder.output_layer_norm(states[:, 1:])
        boxes = (decoder.box_head(queries) + _official.inverse_sigmoid(boxes)).sigmoid()
    presence = decoder.presence_head(decoder.presence_layer_norm(states[:, :1])).squeeze(-1)
    limit = decoder.clamp_presence_logit_max_val
    return queries, boxes, presence.clamp(min=-limit, max=limit)


def _decode(
    layer: Any,
    states: Tensor,
    position: Tensor,
    text: tuple[Tensor, Tensor],
    seen: tuple[Tensor, Tensor, Bias],
) -> Tensor:
    """Apply a Sam3DetrDecoderLayer to the presence token and the queries (1 or P,1+Q,C)."""
    (tokens, bias), (image, placed, places) = text, seen
    with_position = (states + position)[None]
    changed = attend(layer.self_attn, with_position, with_position, states[None])[0]
    states = layer.self_attn_layer_norm(states + changed)
    changed = attend(layer.text_cross_attn, (states + position)[None], tokens[None], tokens[None], bias)[0]
    states = layer.text_cross_attn_layer_norm(states + changed)
    changed = attend_to_places(layer.vision_cross_attn, states + position, image, placed, places)
    states = layer.vision_cross_attn_layer_norm(states + changed)
    normal: Tensor = layer.mlp_layer_norm(states + layer.mlp(states))
    return normal


def attend_to_places(attention: Any, queries: Tensor, image: Tensor, placed: Tensor, bias: Bias) -> Tensor:
    """Compute the attention of many queries (P,Q,C) to image positions (P,L,C), with the bias of _place_bias().

    Heads are computed one by one, because the logits of one head (4 MB) stay in the processor's caches from their
    product to the softmax, unlike those of all heads.
    """
    heads: Any = attention.num_attention_heads
    split = [
        linear(projection, states).chunk(heads, dim=2)
        for projection, states in (
            (attention.q_proj, queries),
            (attention.k_proj, placed),
            (attention.v_proj, image),
        )
    ]
    seen = []
    for head, (query, key, value) in enumerate(zip(*split, strict=True)):
        rows, columns = (part[:, head] for part in bias)
        logits = (query * attention.scaling) @ key.transpose(1, 2)
        logits = logits + (rows.unsqueeze(-1) + columns.unsqueeze(-2)).flatten(2)
        seen.append(logits.softmax(dim=-1) @ value)
    attended: Tensor = attention.o_proj(torch.cat(seen, dim=2))
    return attended


def _place_bias(decoder: Any, boxes: Tensor, side: int) -> Bias:
    """Return the bias of each query for each position; see Sam3DetrDecoder._get_rpb_matrix.

    It is the sum of two small parts (P,heads,1+Q,side), one for the row of a position and one for its column. The
    presence token, the first row, has no bias.
    """
    corners = _official.box_cxcywh_to_xyxy(boxes)  # (P,Q,4)
    places = torch.arange(side, dtype=boxes.dtype, device=boxes.device) / side
    parts = []
    for first, embed in ((1, decoder.box_rpb_embed_y), (0, decoder.box_rpb_embed_x)):
        offsets = (places[:, None] - corners[:, :, None, first::2]) * 8  # (P,Q,side,2)
        scaled = torch.sign(offsets) * torch.log2(torch.abs(offsets) + 1.0) / math.log2(8)
        embedded = embed(scaled.flatten(0, 2)).unflatten(0, scaled.shape[:3])  # as rows of one matrix, see linear()
        parts.append(functional.pad(embedded.permute(0, 3, 1, 2), (0, 0, 1, 0)))  # (P,heads,1+Q,side)
    return parts[0], parts[1]
