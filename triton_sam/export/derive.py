"""Compute a graph's weights from the tensors of a checkpoint, by trees of a few operations on arrays.

Most weights of a graph are tensors of the checkpoint, some of them transposed. The others are products, parts and
concatenated parts of tensors, for example a convolution with a folded batch normalisation. A tree is a list that can be
stored as JSON: the name of an operation, and its arguments, some of which are trees.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tree = list[Any]
TAKE, VALUE, JOIN = "take", "value", "join"

_UNARY: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "reshape": lambda array, shape: array.reshape(shape),
        "transpose": lambda array, axes: array.transpose(axes),
        "broadcast": np.broadcast_to,
        "part": lambda array, axis, start, stop: array[(slice(None),) * axis + (slice(start, stop),)],
        "choose": lambda array, axis, places, shape: np.take(array, np.reshape(places, shape), axis),
        "pad": np.pad,
        "root": np.sqrt,
        "sine": np.sin,
        "cosine": np.cos,
        "cast": lambda array, dtype: array.astype(dtype),
    }
)
_BINARY: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "divide": np.divide,
        "product": np.matmul,
    }
)
"""The operations on two arrays. "product" is the matrix product."""


def evaluate(tree: Tree, tensor: Callable[[str], Array]) -> Array:
    """Return the array of a tree."""
    operation, *arguments = tree
    if operation == TAKE:
        return tensor(arguments[0])
    if operation == VALUE:
        dtype, shape, text = arguments
        return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)
    if operation == JOIN:
        parts, axis = arguments
        return np.concatenate([evaluate(part, tensor) for part in parts], axis)
    if operation in _BINARY:
        first, second = arguments
        return _BINARY[operation](evaluate(first, tensor), evaluate(second, tensor))
    array, *others = arguments
    return _UNARY[operation](evaluate(array, tensor), *others)


def value(array: Array) -> Tree:
    """Return a tree for an array that does not depend on the checkpoint."""
    return [VALUE, array.dtype.str, list(array.shape), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()]


def names_in(tree: Any) -> set[str]:
    """Return the names of the tensors in a tree."""
    if not isinstance(tree, list) or not tree:
        return set()
    if tree[0] == TAKE:
        return {tree[1]}
    return set().union(*(names_in(each) for each in tree))
