"""Trace a torch module into an ONNX graph."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch
from onnx import numpy_helper

from .._common.progress import quiet
from .._common.text import first_line
from ..errors import ExportError
from ..families.tables import ModelSpec
from .onnx_tools import OPSET

export_program: Callable[..., Any] = torch.onnx.export
"""torch's exporter. make_templates.py replaces it, to read graphs before they are optimised."""


def trace(
    module: torch.nn.Module,
    spec: ModelSpec,
    example: Sequence[torch.Tensor],
    dynamic: Mapping[str, Mapping[int, torch.export.Dim]],
) -> onnx.ModelProto:
    """Export a module with torch's exporter, and suppress the exporter's output.

    Args:
        module: its forward() takes the spec's inputs and returns the spec's outputs, in the spec's order. It is moved
            to the device of the example, because a wrapper module's buffers are on the CPU at first.
        dynamic: maps an input's name to its dynamic dimensions, by axis. All other dimensions are fixed.
    """
    # By position, because some tensor names are not valid Python argument names.
    shapes = tuple(dict(dynamic[name]) if name in dynamic else None for name in spec.input_names)
    try:
        # If its first export method fails, torch prints the whole graph to stderr and tries the next one.
        with quiet(), contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
            program = export_program(
                module.eval().to(example[0].device),
                tuple(example),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                input_names=list(spec.input_names),
                output_names=list(spec.output_names),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ExportError(f"torch could not export the {spec.role}: {first_line(error)}") from error
    if program is None:
        raise ExportError(f"torch returned no graph for the {spec.role}")
    model: onnx.ModelProto = program.model_proto
    return model


def free_batch(model: onnx.ModelProto) -> None:
    """Make the batch dynamic in reshapes that were traced with an image batch of 1.

    Constant shapes that start with 1 then start with -1.
    """
    shapes = {item.name: item for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "Reshape" or node.input[1] not in shapes:
            continue
        shape = numpy_helper.to_array(shapes[node.input[1]])
        if shape.size > 1 and shape[0] == 1 and (shape > 0).all():
            freed = shape.copy()
            freed[0] = -1
            shapes[node.input[1]].CopyFrom(numpy_helper.from_array(freed, node.input[1]))
