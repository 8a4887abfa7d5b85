"""The rule about the guard of an exported graph."""

from __future__ import annotations

from typing import Any

from triton_sam.export import onnx_tools
from triton_sam.families.tables import GUARD_PREFIX


def assert_guarded(model: Any) -> None:
    """Check that no node reads an input with a variable size before the guard has checked it."""
    free = {
        value.name
        for value in model.graph.input
        if any(not side.HasField("dim_value") for side in value.type.tensor_type.shape.dim)
    }
    assert free
    guarding = [node for node in model.graph.node if node.name.startswith(GUARD_PREFIX)]
    assert free == {name for node in guarding for name in node.input} & {value.name for value in model.graph.input}
    for node in model.graph.node:
        assert node in guarding or not free & set(node.input), node.name
    assert model.ir_version <= onnx_tools.MAX_IR_VERSION
    assert {opset.domain: opset.version for opset in model.opset_import}[""] == onnx_tools.OPSET
    assert {node.domain for node in guarding} == {""}
