"""A guard at the inputs of a graph, which refuses tensors of unsupported sizes.

ONNX Runtime checks fixed dimensions, but not dimensions with a symbol. Requests with wrong sizes reach its kernels: a
batch of 0 images ends the process (MultiHeadAttention, 1.19 to 1.28, SIGFPE), and contradictory sizes sometimes give a
wrong answer. Its memory grows with the prompts and points of a request, and NVIDIA's backend keeps the memory of the
largest one. With the guard, wrong and very large requests are errors, and all others have exactly the same results.

The guard uses operators of the ONNX standard, and only on shapes: no step depends on the values of an input. It adds at
most a few dozen nodes with a few integers each; a Reshape does not copy its input.

This module needs the onnx package, but not torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from ..families.tables import GUARD_PREFIX, Dimension, ModelSpec, Tensor

_REFUSED = -2
"""A size that Reshape refuses in every version of ONNX Runtime, also for an empty tensor."""

_AXES_AS_INPUT = 18
"""The opset from which ReduceMin takes the axes as an input. Published graphs may have an older one."""


def add_guard(model: onnx.ModelProto, spec: ModelSpec) -> None:
    """Put the guard between the inputs of a graph and its nodes.

    Every node waits for the guard, because an earlier node could end the process. A graph that already has the guard is
    not changed.
    """
    if not is_guarded(model):
        _Guard(model, spec).write()


def is_guarded(model: onnx.ModelProto) -> bool:
    return any(node.name.startswith(GUARD_PREFIX) for node in model.graph.node)


class _Guard:
    def __init__(self, model: onnx.ModelProto, spec: ModelSpec) -> None:
        self.graph = model.graph
        self.opset = max((each.version for each in model.opset_import if not each.domain), default=1)
        self.spec = spec
        self.shapes = {value.name: _shape(value) for value in model.graph.input}
        self.inputs = [tensor for tensor in spec.inputs if any(side == 0 for side in self.shapes[tensor.name])]
        """The inputs with a dynamic dimension."""
        self.nodes: list[onnx.NodeProto] = []

    def write(self) -> None:
        """Add the nodes at the start of the graph, and connect all other nodes to the guard's outputs."""
        if not self.inputs:
            return
        if len(self.inputs) == 1 and self._only_needs_an_image(self.inputs[0]):
            guarded = {self.inputs[0].name: self._refuse_nothing(self.inputs[0].name)}
        else:
            verdict = self._compare_sizes()
            guarded = {tensor.name: self._let_through(tensor.name, verdict) for tensor in self.inputs}
        for symbols, most in self.spec.limits.items():
            tensor = next(item for item in self.inputs if not item.optional and set(symbols) <= set(item.shape))
            guarded[tensor.name] = self._limit(tensor, guarded[tensor.name], symbols, most)
        for node in self.graph.node:
            node.input[:] = [guarded.get(name, name) for name in node.input]
        nodes = [*self.nodes, *self.graph.node]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def _only_needs_an_image(self, tensor: Tensor) -> bool:
        """Whether a first dimension of 0 is the only possible error."""
        first, *others = self.shapes[tensor.name]
        return first == 0 and bool(others) and all(others) and self._rule(tensor.shape[0]) == Dimension()

    def _refuse_nothing(self, name: str) -> str:
        """Refuse an input whose first dimension is 0, using only constants.

        The first Reshape must infer the size of -1, which fails for an empty tensor. The second one restores the shape.
        """
        flat = self._add("Reshape", [name, self._constant("flat", [0, -1])], f"{name}/flat")
        return self._restore(name, flat)

    def _let_through(self, name: str, verdict: str) -> str:
        """Return an input unchanged, or fail: the result of _compare_sizes() selects the shape of a Reshape."""
        rank = len(self.shapes[name])
        kept = self._constant(f"kept{rank}", [0] * rank)  # Reshape keeps a dimension where its shape is 0
        shape = self._add("Where", [verdict, kept, self._constant("refused", [_REFUSED])], f"{name}/shape")
        checked = self._add("Reshape", [name, shape], f"{name}/checked")
        return self._restore(name, checked)

    def _restore(self, name: str, value: str) -> str:
        """Give a value the shape of an input, so that ONNX Runtime and TensorRT know the fixed dimensions."""
        first, *others = self.shapes[name]
        return self._add("Reshape", [value, self._constant(f"{name}/sizes", [first, *others])], f"{name}/input")

    def _limit(self, tensor: Tensor, value: str, symbols: tuple[str, ...], most: int) -> str:
        """Return an input unchanged, or fail if the product of its sizes for the symbols is too large.

        The name of the failing node says why, because ONNX Runtime's error contains it.
        """
        name = f"{tensor.name}/{'_'.join(symbols)}"
        sizes = self._add("Shape", [value], f"{name}/sizes")
        product, *factors = [self._pick(sizes, [tensor.shape.index(symbol)], f"{name}/{symbol}") for symbol in symbols]
        for number, factor in enumerate(factors):
            product = self._add("Mul", [product, factor], f"{name}/product{number}")
        fits = self._add("LessOrEqual", [product, self._constant(f"{name}/most", [most])], f"{name}/fits")
        kept = self._constant(f"kept{len(tensor.shape)}", [0] * len(tensor.shape))
        shape = self._add("Where", [fits, kept, self._constant("refused", [_REFUSED])], f"{name}/shape")
        checked = self._add("Reshape", [value, shape], f"{name}/checked")
        words = " x ".join(symbols)
        self.nodes[-1].name = f"{GUARD_PREFIX}a request may have at most {most} {words}: send several requests"
        sides = self._constant(f"{tensor.name}/sizes", self.shapes[tensor.name])
        return self._add("Reshape", [checked, sides], f"{name}/input")

    def _compare_sizes(self) -> str:
        """Return the name of a bool: whether all dynamic dimensions fit each other and the model."""
        rows = [
            (tensor, axis) for tensor in self.inputs for axis, side in enumerate(self.shapes[tensor.name]) if side == 0
        ]
        places = self._places()
        numbers: list[int] = []  # constants for comparison, which follow the sizes in one table

        def place(choice: int | str) -> int:
            if isinstance(choice, str):
                return places[choice]
            if choice not in numbers:
                numbers.append(choice)
            return self._count() + numbers.index(choice)

        columns = _equally_long([[place(choice) for choice in self._choices(tensor, axis)] for tensor, axis in rows])
        minima = [self._rule(tensor.shape[axis]).minimum for tensor, axis in rows]
        shapes = [self._add("Shape", [tensor.name], f"{tensor.name}/sides") for tensor in self.inputs]
        if numbers:
            shapes.append(self._constant("numbers", numbers))
        table = self._add("Concat", shapes, "table", axis=0)
        own = self._pick(table, [self._place(tensor, axis) for tensor, axis in rows], "own")
        fits = self._add("Equal", [own, self._pick(table, columns[0], "choice0")], "fits0")
        for number, column in enumerate(columns[1:], start=1):
            other = self._add("Equal", [own, self._pick(table, column, f"choice{number}")], f"equal{number}")
            fits = self._add("Or", [fits, other], f"fits{number}")
        enough = self._add("GreaterOrEqual", [own, self._constant("minima", minima)], "enough")
        right = self._add("And", [fits, enough], "right")
        counted = self._add("Cast", [right], "counted", to=TensorProto.INT64)
        # Without axes, ReduceMin reduces all of them; there is one.
        axes = [self._constant("axis", [0])] if self.opset >= _AXES_AS_INPUT else []
        fewest = self._add("ReduceMin", [counted, *axes], "fewest", keepdims=0)
        return self._add("Cast", [fewest], "verdict", to=TensorProto.BOOL)

    def _choices(self, tensor: Tensor, axis: int) -> Sequence[int | str]:
        """Return the sizes that a dimension may have: numbers, and symbols for the sizes of other dimensions."""
        symbol = tensor.shape[axis]
        if isinstance(symbol, int):
            return (symbol,)  # the family's table fixes a size that is dynamic in the graph
        choices = self._rule(symbol).choices or (symbol,)
        return (*choices, 1) if tensor.optional else choices

    def _rule(self, side: int | str) -> Dimension:
        return self.spec.dimensions.get(str(side), Dimension())

    def _places(self) -> dict[str, int]:
        """Return the index of each symbol's size in the table: its first dimension in the required inputs."""
        places: dict[str, int] = {}
        for tensor in sorted(self.inputs, key=lambda tensor: tensor.optional):
            for axis, side in enumerate(tensor.shape):
                if isinstance(side, str):
                    places.setdefault(side, self._place(tensor, axis))
        return places

    def _place(self, tensor: Tensor, axis: int) -> int:
        """Return the index of a dimension's size in the table."""
        before = self.inputs[: self.inputs.index(tensor)]
        return sum(len(self.shapes[other.name]) for other in before) + axis

    def _count(self) -> int:
        return sum(len(self.shapes[tensor.name]) for tensor in self.inputs)

    def _pick(self, table: str, places: Sequence[int], name: str) -> str:
        return self._add("Gather", [table, self._constant(f"{name}/places", places)], name)

    def _constant(self, name: str, numbers: Iterable[int]) -> str:
        full = GUARD_PREFIX + name
        if all(item.name != full for item in self.graph.initializer):
            values = list(numbers)
            self.graph.initializer.append(helper.make_tensor(full, TensorProto.INT64, [len(values)], values))
        return full

    def _add(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        full = GUARD_PREFIX + name
        self.nodes.append(helper.make_node(operator, inputs, [full], full, **attributes))
        return full


def _shape(value: onnx.ValueInfoProto) -> list[int]:
    """Return the shape of an input, with 0 for each dynamic dimension."""
    return [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]


def _equally_long(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the columns of a table of rows; shorter rows repeat their last number."""
    length = max(map(len, rows))
    filled = [[*row, *([row[-1]] * (length - len(row)))] for row in rows]
    return [list(column) for column in zip(*filled, strict=True)]
