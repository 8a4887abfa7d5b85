"""Finds how the weights of a traced graph are derived from a state dict: the recipe of a template.

Weights are derived in two places. Modules compute some with torch while they are built, which `Recorder` records. The
exporter's optimiser computes others from the traced graph, in which they still have their names and nodes. A weight
with the same value for two state dicts is a constant.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from triton_sam.export.templates import JOIN, TAKE, VALUE, Tree, evaluate, value

Array = npt.NDArray[Any]
_VIEWS = {"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "alias", "clone", "detach", "_to_copy"}
_ARITHMETIC = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "mm": "product", "mv": "product"}
_ONNX_ARITHMETIC = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "MatMul": "product"}


class UnknownDerivationError(Exception):
    """A weight of a graph depends on the checkpoint by an operation that recipes do not support."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations on real tensors, by the content of their results."""

    def __init__(self, state: Mapping[str, Array]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: dict[bytes, tuple[str, tuple[Any, ...], bool, int, Array]] = {}
        self._kept = {key(array): array.ravel() for array in state.values()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            frozen = tuple(self._frozen(each) for each in args)  # before an in-place operation changes them
        except TypeError:
            return func(*args, **(kwargs or {}))
        found = func(*args, **(kwargs or {}))
        results = found if isinstance(found, (tuple, list)) else (found,)
        for index, result in enumerate(results):
            with contextlib.suppress(TypeError):
                array = self._frozen(result)
                if isinstance(array, np.ndarray):
                    name = func._overloadpacket.__name__  # noqa: SLF001 - the only name of an operator
                    self.made.setdefault(key(array), (name, frozen, bool(kwargs), index, array))
        return found

    def _frozen(self, thing: Any) -> Any:
        """Return a tensor as an immutable array; equal arrays are stored once."""
        if isinstance(thing, torch.Tensor):
            if isinstance(thing, FakeTensor) or thing.device.type != "cpu":
                raise TypeError("a tensor without content")
            with torch.utils._python_dispatch._disable_current_modes():  # noqa: SLF001 - it would record the conversion
                array = thing.detach().numpy()
            name = key(array)
            if name not in self._kept:
                self._kept[name] = array.flatten()
            return self._kept[name].reshape(array.shape)
        if isinstance(thing, (torch.UntypedStorage, torch.Generator)):
            raise TypeError("no argument of an operation that a recipe has")
        if isinstance(thing, (list, tuple)):
            return [self._frozen(each) for each in thing]
        return thing


def key(array: Array) -> bytes:
    """Return a digest of type and content, regardless of the shape."""
    return hashlib.blake2b(
        np.ascontiguousarray(array).tobytes(), person=array.dtype.str.encode(), digest_size=16
    ).digest()


class Recipes:
    """Finds the trees of the weights of one graph."""

    def __init__(
        self,
        state: Mapping[str, Array],
        made: Mapping[bytes, tuple[str, tuple[Any, ...], bool, int, Array]],
        raw: onnx.ModelProto,
        leaves: Mapping[str, Array],
        others: Mapping[str, Array],
    ) -> None:
        self.state = state
        self.known: dict[bytes, list[str]] = {}
        for name, array in state.items():
            self.known.setdefault(key(array), []).append(name)
            if array.ndim >= 2:
                self.known.setdefault(key(array.T), []).append(name)
        self.made = made
        self.pending: set[bytes] = set()
        self.leaves = leaves
        self.others = others
        self.nodes = {output: node for node in raw.graph.node for output in node.output}
        self.raw = raw

    def of(self, name: str, array: Array, node: onnx.NodeProto | None) -> Tree:
        """Return the tree of a weight."""
        tree = self._by_content(array)
        if tree is None and node is not None and node.op_type in ("Conv", "ConvTranspose"):
            tree = self._folded(name, node)
        if tree is None and (name in self.nodes or name in self.leaves):
            tree = self._named(name)
        if tree is None:
            raise UnknownDerivationError(f"{name} {array.shape}")
        return tree

    def _by_content(self, array: Array) -> Tree | None:
        for name in self.known.get(key(array), ()):
            found = self.state[name]
            if np.array_equal(np.ravel(found), np.ravel(array)):
                take: Tree = [TAKE, name]
                return take if found.shape == array.shape else ["reshape", take, list(array.shape)]
            if np.array_equal(np.ravel(found.T), np.ravel(array)):
                turned: Tree = ["transpose", [TAKE, name], list(range(found.ndim))[::-1]]
                return turned if found.T.shape == array.shape else ["reshape", turned, list(array.shape)]
        own = key(array)
        made = self.made.get(own)
        if made is None or own in self.pending:  # an identity operation has its own result as an argument
            return None
        self.pending.add(own)
        tree = self._recorded(*made)
        self.pending.remove(own)
        return tree if tree is None or made[4].shape == array.shape else ["reshape", tree, list(array.shape)]

    def _argument(self, thing: Any) -> Tree:
        """Return the tree of an argument of a recorded operation. Anything but checkpoint tensors is a constant."""
        if not isinstance(thing, np.ndarray):
            return value(np.asarray(thing, np.float32))
        found = self._by_content(thing)
        return value(thing) if found is None else found

    def _recorded(self, name: str, args: tuple[Any, ...], has_options: bool, index: int, out: Array) -> Tree | None:
        """Return the tree of a torch operation's result; None if it does not depend on the state dict."""
        if name == "copy_":
            return self._by_content(args[1])
        if name == "cat":
            parts = [self._argument(each) for each in args[0]]
            axis = args[1] if len(args) > 1 else 0
            return [JOIN, parts, axis % out.ndim] if any(map(_depends, parts)) else None
        if name in _ARITHMETIC and not has_options:
            operands = [self._argument(each) for each in args[:2]]
            return [_ARITHMETIC[name], *operands] if any(map(_depends, operands)) else None
        source = self._by_content(args[0]) if args and isinstance(args[0], np.ndarray) else None
        return None if source is None else self._moved(source, name, args, index, out)

    def _moved(self, source: Tree, name: str, args: tuple[Any, ...], index: int, out: Array) -> Tree | None:
        """Return the tree of a result that consists of elements of the first argument; None for other operations."""
        if name == "_to_copy" and out.dtype != args[0].dtype:
            return ["cast", source, out.dtype.str]
        if name == "constant_pad_nd":
            pairs = [list(args[1][place : place + 2]) for place in range(0, len(args[1]), 2)]
            return ["pad", source, [[0, 0]] * (out.ndim - len(pairs)) + pairs[::-1]]
        if name == "pow" and args[1] == 0.5:
            return ["root", source]
        if name in ("sin", "cos"):
            return [{"sin": "sine", "cos": "cosine"}[name], source]
        if name in _VIEWS:
            return ["reshape", source, list(out.shape)]
        if name in ("t", "transpose", "permute", "numpy_T"):
            return ["transpose", source, _axes(name, args, out.ndim)]
        if name in ("split", "split_with_sizes", "chunk", "slice", "select", "unbind"):
            return self._part(source, name, args, index, out)
        if name == "index":
            (axis,) = [place for place, each in enumerate(args[1]) if each is not None]
            places = args[1][axis]
            return ["choose", source, axis, np.ravel(places).tolist(), list(places.shape)]
        return None

    def _part(self, source: Tree, name: str, args: tuple[Any, ...], index: int, out: Array) -> Tree:
        if name in ("slice", "select"):
            axis = args[1] % args[0].ndim if len(args) > 1 else 0
            start = args[2] if len(args) > 2 and args[2] is not None else 0
            size = args[0].shape[axis]
            start = start + size if start < 0 else start
            stop = start + 1 if name == "select" else min(args[3] if len(args) > 3 else size, size)
            part: Tree = ["part", source, axis, start, stop]
            return ["reshape", part, list(out.shape)] if name == "select" else part
        if name == "unbind":
            axis = args[1] % args[0].ndim if len(args) > 1 else 0
            return ["reshape", ["part", source, axis, index, index + 1], list(out.shape)]
        axis = (args[2] if len(args) > 2 else 0) % args[0].ndim
        step = args[1] if name == "split" else -(-args[0].shape[axis] // args[1])
        return ["part", source, axis, index * step, index * step + out.shape[axis]]

    def _folded(self, name: str, node: onnx.NodeProto) -> Tree | None:
        """Return the tree of a convolution's weight or bias with a folded batch normalisation.

        Reference: onnxscript.rewriter.rules.common._fuse_batchnorm.
        """
        weight = node.input[1]
        before = [each for each in self.raw.graph.node if each.op_type == node.op_type and each.input[1] == weight]
        if len(before) != 1:
            return None
        after = [each for each in self.raw.graph.node if before[0].output[0] in each.input]
        if len(after) != 1 or after[0].op_type != "BatchNormalization":
            return None
        gamma, beta, mean, variance = (self._named(each) for each in after[0].input[1:5])
        epsilon = next((each.f for each in after[0].attribute if each.name == "epsilon"), 1e-5)
        root: Tree = ["root", ["add", variance, value(np.asarray(epsilon, np.float32))]]
        factor: Tree = ["divide", gamma, root]
        if name == weight:
            rank = len(self.leaves[weight].shape)
            shape = [1] * rank
            shape[0 if node.op_type == "Conv" else 1] = -1
            return ["multiply", self._named(weight), ["reshape", factor, shape]]
        bias = self._named(before[0].input[2]) if len(before[0].input) > 2 else value(np.asarray(0, np.float32))
        return ["add", ["multiply", ["subtract", bias, mean], factor], beta]

    def _named(self, name: str) -> Tree:
        """Return the tree of a value of the graph before the optimiser."""
        if name in self.leaves:
            array = self.leaves[name]
            tree = self._by_content(array)
            if tree is None and np.array_equal(array, self.others.get(name, array)):
                tree = value(array)
            if tree is None:
                raise UnknownDerivationError(name)
            return tree
        if name not in self.nodes:
            raise UnknownDerivationError(f"{name} is an input of the graph")
        node = self.nodes[name]
        if node.op_type == "CastLike":  # the other input only has the type, FP32
            tree = self._named(node.input[0])
            return tree if _depends(tree) else value(_array(tree).astype(np.float32))
        inputs = [self._named(each) if each else value(np.zeros(0, np.int64)) for each in node.input]
        if not any(_depends(each) for each in inputs):
            return value(_run(node, [_array(each) for each in inputs], name))
        return self._operation(node, inputs, name)

    def _operation(self, node: onnx.NodeProto, inputs: list[Tree], name: str) -> Tree:
        options = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        kind = node.op_type
        if kind in ("Identity", "Cast"):
            return inputs[0]
        if kind in _ONNX_ARITHMETIC:
            return [_ONNX_ARITHMETIC[kind], *inputs]
        if kind == "Concat":
            return [JOIN, inputs, options["axis"]]
        if kind == "Transpose":
            return ["transpose", inputs[0], list(options["perm"])]
        if kind in ("Shape", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand"):
            return self._shaped(node, inputs, options, name)
        if kind in ("Gather", "GatherND", "Slice", "Split"):
            return _taken(node, inputs, options, name)
        raise UnknownDerivationError(f"{kind} {name}")

    def _shaped(self, node: onnx.NodeProto, inputs: list[Tree], options: Mapping[str, Any], name: str) -> Tree:
        arrays = [evaluate(each, self.state.__getitem__) for each in inputs]
        if node.op_type == "Shape":
            return value(np.asarray(arrays[0].shape[options.get("start", 0) : options.get("end")], np.int64))
        shape = list(_run(node, arrays, name).shape)
        return ["broadcast" if node.op_type == "Expand" else "reshape", inputs[0], shape]


def _taken(node: onnx.NodeProto, inputs: list[Tree], options: Mapping[str, Any], name: str) -> Tree:
    """Return the tree of a node that selects elements."""
    tree = inputs[0]
    if node.op_type in ("Gather", "GatherND"):
        places = _array(inputs[1])
        if node.op_type == "GatherND":
            if places.shape[-1] != 1:
                raise UnknownDerivationError(f"GatherND {name}")
            places = places[..., 0]
        return ["choose", tree, options.get("axis", 0), np.ravel(places).tolist(), list(places.shape)]
    if node.op_type == "Split":
        stops = np.cumsum(_array(inputs[1])).tolist()
        index = list(node.output).index(name)
        return ["part", tree, options.get("axis", 0), [0, *stops][index], stops[index]]
    starts, stops, axes, *steps = (_array(each).tolist() for each in inputs[1:])
    if set(*steps) - {1}:
        raise UnknownDerivationError(f"Slice {name}")
    for axis, start, stop in zip(axes, starts, stops, strict=True):
        tree = ["part", tree, axis, start, stop]
    return tree


def _depends(tree: Tree) -> bool:
    """Whether a tree depends on the state dict."""
    return bool(tree[0] != VALUE)


def _axes(name: str, args: tuple[Any, ...], rank: int) -> list[int]:
    if name == "permute":
        return [axis % rank for axis in args[1]]
    axes = list(range(rank))
    if name == "transpose":
        first, second = args[1] % rank, args[2] % rank
        axes[first], axes[second] = axes[second], axes[first]
        return axes
    return axes[::-1]


def _array(tree: Tree) -> Array:
    nothing: dict[str, Array] = {}
    return evaluate(tree, nothing.__getitem__)


def _run(node: onnx.NodeProto, inputs: list[Array], name: str) -> Array:
    """Compute one node whose inputs are constants."""
    names = [f"in{index}" for index in range(len(inputs))]
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    alone.input[:] = [each if node.input[index] else "" for index, each in enumerate(names)]
    infos = [
        onnx.helper.make_tensor_value_info(each, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for each, array in zip(names, inputs, strict=True)
    ]
    output = onnx.helper.make_empty_tensor_value_info(name)
    graph = onnx.helper.make_graph([alone], "one", infos, [output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    (found,) = ReferenceEvaluator(model).run([name], dict(zip(names, inputs, strict=True)))
    return np.asarray(found)
