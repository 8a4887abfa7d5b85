"""Rewrites of a traced graph that change no number, but let ONNX Runtime use a faster kernel."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper


def ease_gelu(model: onnx.ModelProto) -> int:
    """Bring GELU into the order in which ONNX Runtime knows it, and return how many there were.

    torch writes x * (0.5 * (1 + erf(x / sqrt 2))). ONNX Runtime (1.31) runs that as five passes over the data; it fuses
    (x * (1 + erf(x / sqrt 2))) * 0.5 into one. Halving is exact, so both give the same bits.
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
        for factor, halved in (tuple(node.input), tuple(node.input)[::-1]):
            inner = producers.get(halved)
            if inner is None or inner.op_type != "Mul" or users[halved] != 1:
                continue
            half = next((name for name in inner.input if name in halves), None)
            grown = next((name for name in inner.input if name not in halves), None)
            if half is None or grown is None or not _is_one_plus_erf(producers, grown, factor):
                continue
            inner.input[:] = [factor, grown]
            node.input[:] = [halved, half]
            changed += 1
            break
    return changed


def _halves(model: onnx.ModelProto) -> set[str]:
    """Return the names of constants that are a single 0.5."""
    constants = {item.name: item for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    small = {name: numpy_helper.to_array(item) for name, item in constants.items() if np.prod(item.dims) == 1}
    return {name for name, value in small.items() if value.dtype.kind == "f" and value.item() == 0.5}


def _is_one_plus_erf(producers: dict[str, onnx.NodeProto], name: str, x: str) -> bool:
    """Whether a value is 1 + erf(x / c)."""
    add = producers.get(name)
    if add is None or add.op_type != "Add":
        return False
    for part in add.input:
        erf = producers.get(part)
        if erf is not None and erf.op_type == "Erf":
            divided = producers.get(erf.input[0])
            return divided is not None and divided.op_type in ("Div", "Mul") and x in divided.input
    return False
