"""Rewrite a traced graph for faster kernels of ONNX Runtime, with exactly the same results."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper


def reorder_gelu(model: onnx.ModelProto) -> int:
    """Reorder the factors of each GELU so that ONNX Runtime recognises and fuses it.

    torch writes x * (0.5 * (1 + erf(x / sqrt 2))), which ONNX Runtime (1.31) computes in five passes over the data. It
    fuses (x * (1 + erf(x / sqrt 2))) * 0.5 into a single pass. Multiplication by 0.5 is exact, so both forms give the
    same bits.

    Returns:
        The number of reordered GELUs.
    """
    producers = {output: node for node in model.graph.node for output in node.output}
    users: dict[str, int] = {}
    for node in model.graph.node:
        for name in node.input:
            users[name] = users.get(name, 0) + 1
    halves = _halves(model)
    changed = 0
    for node in model.graph.node:
        if node.op_type != "Mul" or len(node.input) != 2:
            continue
        for factor, product in (tuple(node.input), tuple(node.input)[::-1]):
            inner = producers.get(product)
            if inner is None or inner.op_type != "Mul" or users[product] != 1:
                continue
            half = next((name for name in inner.input if name in halves), None)
            one_plus_erf = next((name for name in inner.input if name not in halves), None)
            if half is None or one_plus_erf is None or not _is_one_plus_erf(producers, one_plus_erf, factor):
                continue
            inner.input[:] = [factor, one_plus_erf]
            node.input[:] = [product, half]
            changed += 1
            break
    return changed


def _halves(model: onnx.ModelProto) -> set[str]:
    """Return the names of the constants that are the single number 0.5."""
    constants = {item.name: item for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    small = {name: numpy_helper.to_array(item) for name, item in constants.items() if np.prod(item.dims) == 1}
    return {name for name, value in small.items() if value.dtype.kind == "f" and value.item() == 0.5}


def _is_one_plus_erf(producers: dict[str, onnx.NodeProto], name: str, x: str) -> bool:
    """Return whether the value ``name`` is 1 + erf(x / c)."""
    add = producers.get(name)
    if add is None or add.op_type != "Add":
        return False
    for part in add.input:
        erf = producers.get(part)
        if erf is not None and erf.op_type == "Erf":
            divided = producers.get(erf.input[0])
            return divided is not None and divided.op_type in ("Div", "Mul") and x in divided.input
    return False
