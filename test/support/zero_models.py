"""An exporter whose graphs return zeros. Its exports skip the trace and run all later steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch

from triton_sam.export import onnx_tools
from triton_sam.export.exporter import Exporter
from triton_sam.export.pipeline import Exported, export_models
from triton_sam.export.settings import Settings
from triton_sam.repository import BUILT_IN_CHECKPOINT

FLOAT = onnx.TensorProto.FLOAT


def zeros(_: Any, spec: Any) -> Any:
    """Return a graph with the signature of a model that returns zeros."""

    def values(tensors: Any) -> Any:
        return [onnx.helper.make_tensor_value_info(tensor.name, FLOAT, tensor.shape) for tensor in tensors]

    nodes, shapes = [], []
    for tensor in spec.outputs:
        shape = [side if isinstance(side, int) else 1 for side in tensor.shape]
        shapes.append(onnx.helper.make_tensor(f"{tensor.name}.shape", onnx.TensorProto.INT64, [len(shape)], shape))
        nodes.append(onnx.helper.make_node("ConstantOfShape", [shapes[-1].name], [tensor.name], tensor.name))
    graph = onnx.helper.make_graph(nodes, spec.role, values(spec.inputs), values(spec.outputs), shapes)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", onnx_tools.OPSET)])


class Zeros(Exporter):
    """Exports graphs that return zeros as if they were the micro model."""

    name = "sam2"
    stride = 32

    def load(self, *_: Any, **__: Any) -> Any:
        return torch.nn.Linear(1, 1)

    def trace(self, model: Any, spec: Any, options: Any) -> Any:
        return zeros(model, spec)

    def config(self, settings: Settings) -> str:
        return BUILT_IN_CHECKPOINT


class Proved(Zeros):
    """Skips the trial run of its graphs, which takes most of the time."""

    is_proved = True


def export_zeros(repository: Path, exporter: Exporter | None = None, **options: Any) -> Exported:
    """Export zeros as if they were the micro model, with the options of Settings."""
    if "checkpoint" not in options:
        options = {"random_seed": 0, **options}
    return export_models(exporter or Zeros(), Settings(repository, **options))
