"""Builds the ONNX graphs of the toy models, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from triton_sam.export.guards import add_guard
from triton_sam.families.tables import ModelSpec, Tensor

TYPES = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64}


class Graph:
    """Collects nodes. Each method that adds one returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: npt.ArrayLike, kind: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def reduce(self, operator: str, value: str, *axes: int) -> str:
        return self.add(operator, value, self.constant(axes, np.int64), keepdims=1)

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self.add("Unsqueeze", value, self.constant(axes, np.int64))

    def as_float(self, value: str) -> str:
        return self.add("Cast", value, to=TensorProto.FLOAT)

    def has_label(self, label: int) -> str:
        return self.as_float(self.add("Equal", "point_labels", self.constant(label)))

    def scaled(self, value: str, factor: float) -> str:
        return self.add("Mul", value, self.constant(factor))

    def complement(self, value: str) -> str:
        return self.add("Sub", self.constant(1.0), value)

    def model(self, spec: ModelSpec) -> onnx.ModelProto:
        """Return the graph with the inputs, outputs and guard of a real model. Optional inputs are 0 by default."""
        inputs, outputs = ([_info(tensor) for tensor in tensors] for tensors in (spec.inputs, spec.outputs))
        for tensor in spec.inputs:
            if tensor.optional:
                shape = [side if isinstance(side, int) else 1 for side in tensor.shape]
                self.constants.append(numpy_helper.from_array(np.zeros(shape, np.float32), tensor.name))
        made = helper.make_graph(self.nodes, spec.role, inputs, outputs, self.constants)
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        add_guard(model, spec)
        return model


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, TYPES[tensor.dtype], tensor.shape)
