"""Turn a graph as torch exports it into one that keeps the wire contract: symbols, optional inputs, metadata, files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnx import TensorProto, numpy_helper

from .._common.quiet import quiet
from .._common.text import first_line
from ..errors import ExportError
from ..families.base import ModelSpec, Tensor

OPSET = 18
ONNX_RUNTIME_DOMAIN = "com.microsoft"
"""Of operators that ONNX Runtime has beside the standard's."""

MAX_IR_VERSION = 10
"""The newest that ONNX Runtime 1.19 of Triton 24.10 reads."""

EXTERNAL_DATA_LIMIT = 1_900_000_000
"""Bytes of weights above which they move to a file of their own; protobuf ends at 2 GiB."""

_HALF_STORAGE_MINIMUM = 256


def trace(
    module: torch.nn.Module,
    spec: ModelSpec,
    example: Sequence[torch.Tensor],
    dynamic: Mapping[str, Mapping[int, torch.export.Dim]],
) -> onnx.ModelProto:
    """Export a module with torch's exporter, quietly.

    Args:
        module: its forward takes the spec's inputs in order and returns its outputs in order. It goes to the device of
            the example: what a wrapper registers by itself begins on the CPU.
        spec: names of inputs and outputs.
        example: one tensor an input.
        dynamic: input name -> axis -> dimension that stays free in the graph; all others are fixed.

    Raises:
        ExportError: torch cannot export the module.
    """
    # By position: not every tensor name is one that a Python argument can have.
    shapes = tuple(dict(dynamic[name]) if name in dynamic else None for name in spec.input_names)
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
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


def strip(model: onnx.ModelProto) -> None:
    """Remove what only debugging needs: stack traces with local paths, and shapes of intermediate values.

    The latter hold the batch of the example; ONNX Runtime infers its own.
    """
    del model.graph.value_info[:]
    del model.functions[:]
    del model.metadata_props[:]
    for item in (model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del item.metadata_props[:]
        item.ClearField("doc_string")
    model.ClearField("doc_string")


def free_batch(model: onnx.ModelProto) -> None:
    """Let reshapes that were traced with an image batch of 1 keep any batch: their leading 1 becomes -1."""
    shapes = {item.name: item for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "Reshape" or node.input[1] not in shapes:
            continue
        shape = numpy_helper.to_array(shapes[node.input[1]])
        if shape.size > 1 and shape[0] == 1 and (shape > 0).all():
            freed = shape.copy()
            freed[0] = -1
            shapes[node.input[1]].CopyFrom(numpy_helper.from_array(freed, node.input[1]))


def label_dimensions(model: onnx.ModelProto, spec: ModelSpec) -> None:
    """Name the free dimensions of inputs and outputs as the wire contract does.

    Raises:
        ExportError: a name or a rank differs from the contract, or a dimension that it fixes is free in the graph.
    """
    for values, tensors in ((model.graph.input, spec.inputs), (model.graph.output, spec.outputs)):
        if tuple(value.name for value in values) != tuple(tensor.name for tensor in tensors):
            raise ExportError(f"the {spec.role} graph has other tensors than the wire contract")
        for value, tensor in zip(values, tensors, strict=True):
            _label(value, tensor)


def _label(value: onnx.ValueInfoProto, tensor: Tensor) -> None:
    dimensions = value.type.tensor_type.shape.dim
    if len(dimensions) != len(tensor.shape):
        raise ExportError(f"{tensor.name} has {len(dimensions)} dimensions, the wire contract wants {tensor.shape}")
    for dimension, wanted in zip(dimensions, tensor.shape, strict=True):
        if isinstance(wanted, str):
            dimension.Clear()
            dimension.dim_param = wanted
        elif not dimension.HasField("dim_value"):
            raise ExportError(f"{tensor.name} has a free dimension where the wire contract wants {wanted}")


def add_defaults(model: onnx.ModelProto, spec: ModelSpec) -> None:
    """Give each optional input its default: an initializer of the same name, zeros, with free dimensions at 1."""
    inputs = {value.name: value for value in model.graph.input}
    for tensor in spec.inputs:
        if tensor.optional:
            shape = [dim.dim_value or 1 for dim in inputs[tensor.name].type.tensor_type.shape.dim]
            model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), tensor.name))


def set_metadata(model: onnx.ModelProto, metadata: Mapping[str, str]) -> None:
    """Replace the model's metadata, sorted by key, so that equal exports are equal files."""
    del model.metadata_props[:]
    for key in sorted(metadata):
        model.metadata_props.add(key=key, value=metadata[key])
    model.producer_name, model.producer_version = "triton_sam", ""


def store_half(model: onnx.ModelProto) -> None:
    """Store FP32 weights as FP16 with a Cast behind each; ONNX Runtime folds the casts when it loads the model.

    Arithmetic stays FP32; each weight is rounded to FP16 (relative error up to 2^-11). Small tensors, and defaults of
    inputs, stay as they are.
    """
    inputs = {value.name for value in model.graph.input}
    casts = []
    for item in model.graph.initializer:
        if item.data_type != TensorProto.FLOAT or item.name in inputs:
            continue
        values = numpy_helper.to_array(item)
        if values.size < _HALF_STORAGE_MINIMUM or np.abs(values).max() > np.finfo(np.float16).max:
            continue
        name = item.name
        item.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}.half"))
        casts.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], f"{name}.cast", to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def is_large(model: onnx.ModelProto) -> bool:
    """Whether the weights are above EXTERNAL_DATA_LIMIT."""
    return sum(len(item.raw_data) for item in model.graph.initializer) > EXTERNAL_DATA_LIMIT


def save(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Check and write a model; weights above EXTERNAL_DATA_LIMIT go to `<name>.data` beside it.

    Returns:
        The files written, all flushed to the disk.

    Raises:
        ExportError: the graph is not valid ONNX, or newer than Triton 24.10 reads.
        OSError: the disk is full or not writable.
    """
    model.ir_version = min(model.ir_version, MAX_IR_VERSION)
    external = path.with_name(path.name + ".data") if is_large(model) else None
    onnx.save_model(
        model, path, save_as_external_data=external is not None, location=external.name if external else None
    )
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"the exported graph is not valid ONNX: {first_line(error)}") from error
    if external is not None:  # onnx keeps it to its owner, and Triton may run as somebody else
        external.chmod(path.stat().st_mode)
    written = [path] if external is None else [path, external]
    for file in written:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    return written


def try_out(path: Path) -> None:
    """Load a model in ONNX Runtime on the CPU and run it once, with every free dimension at 1 and defaults left out.

    Raises:
        ExportError: ONNX Runtime refuses the model, or an output is not finite.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {item.name: _example(item) for item in session.get_inputs()})
    except Exception as error:  # ONNX Runtime's errors share no base class below Exception
        raise ExportError(f"ONNX Runtime refuses the exported {path.name}: {first_line(error)}") from error
    if not all(np.isfinite(output).all() for output in outputs):
        raise ExportError(f"the exported {path.name} answers NaN or infinity")


def _example(item: onnxruntime.NodeArg) -> npt.NDArray[np.generic]:
    shape = [side if isinstance(side, int) else 1 for side in item.shape]
    return np.ones(shape, np.int64) if item.type == "tensor(int64)" else np.full(shape, 0.5, np.float32)
