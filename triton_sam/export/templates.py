"""The graphs of official models without weights, and the trees for computing the weights from a checkpoint.

The graph of a size is always the same; only its weights differ. `tools/maintain/make_templates.py` traces the official
models once and writes an archive for each family. An export fills the graphs with the weights of a checkpoint, which
needs neither torch nor the official packages.

An archive is a tar file compressed with xz. It contains the shapes of the tensors of each size, and for each image size
and role a graph and the trees of its weights. Most weights are tensors of the checkpoint, some of them transposed. The
others are products, parts and concatenated parts of tensors, for example a convolution with a folded batch
normalisation. A tree is a list that can be stored as JSON: the name of an operation, and its arguments, some of which
are trees.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..families.base import Family
from ..families.tables import ModelSpec

if TYPE_CHECKING:
    import onnx


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
    if not isinstance(tree, list) or not tree:
        return set()
    if tree[0] == TAKE:
        return {tree[1]}
    return set().union(*(names_in(each) for each in tree))


FOLDER = Path(__file__).parent / "template_files"
Layout = Mapping[str, tuple[int, ...]]
"""The shapes of tensors, by name."""
LAYOUT = "layout.json"


@dataclass(frozen=True)
class Template:
    """The graphs of one size and image size."""

    size: str
    side: int
    roles: frozenset[str]
    layout: Layout


def misfit(layout: Layout, tensors: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the tensors that are missing, unexpected, or of a wrong shape, compared with a layout."""
    absent, surplus = layout.keys() - tensors.keys(), tensors.keys() - layout.keys()
    others = [name for name in layout.keys() & tensors.keys() if tensors[name].shape != layout[name]]
    return sorted(absent), sorted(surplus), sorted(others)


@cache
def templates(family: Family) -> list[Template]:
    """Return all templates of a family; empty if it has no archive."""
    found = []
    members = _members(family.name)
    for size in family.sizes:
        paths = [name.split("/") for name in members if name.startswith(f"{size.name}/")]
        if paths:
            shapes = json.loads(members[f"{size.name}/{LAYOUT}"])
            layout = {name: tuple(shape) for name, shape in shapes.items()}
            roles: dict[int, set[str]] = {}
            for path in paths:
                if len(path) == 3:
                    roles.setdefault(int(path[1]), set()).add(path[2].partition(".")[0])
            found += [Template(size.name, side, frozenset(roles[side]), layout) for side in sorted(roles)]
    return found


def graph_of(family: Family, template: Template, spec: ModelSpec) -> tuple[onnx.ModelProto, dict[str, Tree]]:
    """Return the graph of a role, and the trees of its weights without content."""
    import onnx

    members = _members(family.name)
    place = f"{template.size}/{template.side}/{spec.role}"
    trees: dict[str, Tree] = json.loads(members[f"{place}.json"])
    return onnx.ModelProto.FromString(members[f"{place}.onnx"]), trees


@cache
def _members(family: str) -> Mapping[str, bytes]:
    """Return the files in a family's archive, by name; empty if there is none."""
    path = FOLDER / f"{family}.tar.xz"
    if not path.is_file():
        return {}
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: stream.read() for name, stream in files.items() if stream is not None}
