"""SAM2's attention as one node, ONNX Runtime's `MultiHeadAttention`, in place of matrix products and a softmax.

The node keeps no matrix of all places against all places (256 MiB for the built-in model), and takes queries, keys and
values as they come out of their projections, where torch's graph transposes each of them.
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
def one_node_each(model: nn.Module) -> Iterator[None]:
    """Let every attention block of the image encoder trace as one node. Only for tracing: nothing computes there."""
    blocks = [module for module in model.modules() if isinstance(module, MultiScaleAttention)]
    for block in blocks:
        block.forward = MethodType(_forward, block)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _forward(self: MultiScaleAttention, x: Tensor) -> Tensor:
    """MultiScaleAttention.forward: (B,H,W,C) to (B,H',W',C'), the sides halved where queries are pooled.

    Projections see the places as rows of one matrix: ONNX Runtime adds the bias inside a product of two matrices, but
    in a pass of its own behind any other product.
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
    attended = _attend(query, key, value, self.num_heads)
    projection: Tensor = self.proj(attended.flatten(0, 1))
    return projection.reshape(batch, height, width, -1)


def _attend(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """softmax(q k^T / sqrt(size of a head)) v for (B,places,heads*size) each; a node of the graph, no computation."""
    return torch.onnx.ops.symbolic(
        f"{ONNX_RUNTIME_DOMAIN}::{OPERATOR}",
        (query, key, value),
        {"num_heads": heads},
        dtype=query.dtype,
        shape=query.shape,
        version=1,
    )
