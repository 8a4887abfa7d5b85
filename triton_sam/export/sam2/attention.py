"""SAM2's attention as ONNX Runtime's operator `MultiHeadAttention`, instead of matrix products and a softmax.

The operator does not store the matrix of all positions by all positions, which takes 256 MiB for the demo model. It
takes queries, keys and values in the layout of their projections, whereas torch's graph transposes each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MethodType

import torch
from sam2.modeling.backbones.hieradet import MultiScaleAttention, do_pool
from torch import Tensor, nn

from ..onnx_tools import ONNX_RUNTIME_DOMAIN

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
