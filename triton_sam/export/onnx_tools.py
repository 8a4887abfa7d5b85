"""Turn a graph into a file that follows the wire contract. This needs the onnx package, but not torch.

The functions name dynamic dimensions, add defaults of optional inputs, set metadata, and write and check files.

Files are written one weight at a time, to save memory. An ONNX file is one protobuf message, ModelProto, which contains
the graph, which contains the weights. A message consists of its fields in any order, and the content of each field
except numbers begins with its length. The fields are written in the order of their numbers, as in protobuf. Reference:
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

from .._common.text import first_line, valid_utf8
from ..errors import ExportError
from ..families.tables import ModelSpec, Tensor

Later = Mapping[str, Callable[[], npt.NDArray[Any]]]
"""Functions that compute the weights without content in a graph, C-contiguous, by name."""

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_WEIGHTS = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_CONTENT = TensorProto.RAW_DATA_FIELD_NUMBER
_EXTERNAL_MINIMUM = 1024
"""Weights with fewer bytes stay in the graph's file, as with onnx.save_model()."""
_PAGE = 4096
"""Weights in a separate file begin at multiples of this number, so that ONNX Runtime can map them."""


def size_of(item: TensorProto, later: Later) -> int:
    """Return the number of bytes of a weight's content, or 0 if it is not stored as raw data."""
    if item.name in later:
        dtype: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(item.data_type)
        elements: int = math.prod(item.dims)
        return elements * dtype.itemsize
    content: bytes = item.raw_data
    return len(content)


def write(model: onnx.ModelProto, path: Path, later: Later) -> None:
    """Write a model with all weights to one file."""
    parts = list(_parts(model.graph, later))
    length = sum(len(header) + size for header, size, _ in parts)
    with path.open("wb") as stream:
        for number, content in _fields(model):
            if number != _GRAPH:
                stream.write(content)
                continue
            stream.write(_tag(_GRAPH, length))
            for header, _, item in parts:
                stream.write(header)
                if item is not None:
                    _write_content(stream, item, later)


def move_out(model: onnx.ModelProto, path: Path, later: Later) -> None:
    """Write the larger weights of a model to a separate file, and refer to it in the model."""
    with path.open("wb") as stream:
        for item in model.graph.initializer:
            size = size_of(item, later)
            if size < _EXTERNAL_MINIMUM and item.name not in later:
                continue
            offset = -(-stream.tell() // _PAGE) * _PAGE
            stream.seek(offset)
            _write_content(stream, item, later)
            item.ClearField("raw_data")
            item.data_location = TensorProto.EXTERNAL
            for key, value in (("location", path.name), ("offset", str(offset)), ("length", str(size))):
                item.external_data.add(key=key, value=value)


def _write_content(stream: BinaryIO, item: TensorProto, later: Later) -> None:
    if item.name not in later:
        stream.write(item.raw_data)
        return
    array = later[item.name]()
    if array.shape != tuple(item.dims) or array.dtype != onnx.helper.tensor_dtype_to_np_dtype(item.data_type):
        raise AssertionError(f"{item.name} is {array.dtype} {array.shape}, not as the graph says")
    stream.write(np.ascontiguousarray(array).data.cast("B"))


def _parts(graph: onnx.GraphProto, later: Later) -> Iterator[tuple[bytes, int, TensorProto | None]]:
    """Yield the serialised fields of a graph; for a weight: the bytes before its content, its size, and itself."""
    for number, content in _fields(graph):
        if number != _WEIGHTS:
            yield content, 0, None
            continue
        for item in graph.initializer:
            size = size_of(item, later)
            if not size:
                plain = item.SerializeToString()
                yield _tag(_WEIGHTS, len(plain)) + plain, 0, None
                continue
            # Built from its parts, because a copy of the weight would copy its content. No later field is set.
            head = TensorProto(dims=item.dims, data_type=item.data_type, name=item.name).SerializeToString()
            head += _tag(_CONTENT, size)
            yield _tag(_WEIGHTS, len(head) + size) + head, size, item


def _fields(message: Any) -> Iterator[tuple[int, bytes]]:
    """Yield the set fields of a message in the order of their numbers; graph and weights without content."""
    for field, value in message.ListFields():
        if (type(message), field.number) in ((onnx.ModelProto, _GRAPH), (onnx.GraphProto, _WEIGHTS)):
            yield field.number, b""
            continue
        alone = type(message)()
        if hasattr(value, "extend"):
            getattr(alone, field.name).extend(value)
        elif field.message_type is not None:
            getattr(alone, field.name).CopyFrom(value)
        else:
            setattr(alone, field.name, value)
        yield field.number, alone.SerializeToString()


def _tag(number: int, length: int) -> bytes:
    """Return the bytes before a field's content: its number, wire type 2, and length."""
    return _varint(number << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


OPSET = 18
ONNX_RUNTIME_DOMAIN = "com.microsoft"
"""The domain of ONNX Runtime's own operators, which are not in the ONNX standard."""

MAX_IR_VERSION = 10
"""The newest IR version that Triton 24.10 supports, with ONNX Runtime 1.19."""

EXTERNAL_DATA_LIMIT = 1_900_000_000
"""Weights with more bytes go to a separate file, because a protobuf message cannot exceed 2 GiB."""

_HALF_STORAGE_MINIMUM = 256
"""store_half() leaves smaller tensors in FP32, because they would save almost nothing."""

_NOTHING: Later = MappingProxyType({})


def strip(model: onnx.ModelProto) -> None:
    """Remove stack traces, which contain local paths, and the shapes of intermediate values.

    These shapes are wrong for other batch sizes than the example's, and ONNX Runtime infers the correct ones.
    """
    del model.graph.value_info[:]
    del model.functions[:]
    del model.metadata_props[:]
    for item in (model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del item.metadata_props[:]
        item.ClearField("doc_string")
    model.ClearField("doc_string")


def label_dimensions(model: onnx.ModelProto, spec: ModelSpec) -> None:
    """Give the dynamic dimensions of inputs and outputs the symbols of the wire contract."""
    for values, tensors in ((model.graph.input, spec.inputs), (model.graph.output, spec.graph_outputs)):
        if tuple(value.name for value in values) != tuple(tensor.name for tensor in tensors):
            found = ", ".join(value.name for value in values)
            raise ExportError(f"the tensors of the {spec.role} graph differ from the wire contract: {found}")
        for value, tensor in zip(values, tensors, strict=True):
            _label(value, tensor)


def _label(value: onnx.ValueInfoProto, tensor: Tensor) -> None:
    dimensions = value.type.tensor_type.shape.dim
    if len(dimensions) != len(tensor.shape):
        raise ExportError(f"{tensor.name} has {len(dimensions)} dimensions, but the wire contract says {tensor.shape}")
    for dimension, wanted in zip(dimensions, tensor.shape, strict=True):
        if isinstance(wanted, str):
            dimension.Clear()
            dimension.dim_param = wanted
        elif not dimension.HasField("dim_value"):
            raise ExportError(f"{tensor.name} has a dynamic dimension, but the wire contract fixes it at {wanted}")


def add_defaults(model: onnx.ModelProto, spec: ModelSpec) -> None:
    """Add a default for each optional input: an initializer of the same name, all zeros, dynamic dimensions at 1."""
    inputs = {value.name: value for value in model.graph.input}
    for tensor in spec.inputs:
        if tensor.optional:
            shape = [dim.dim_value or 1 for dim in inputs[tensor.name].type.tensor_type.shape.dim]
            model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), tensor.name))


def set_metadata(model: onnx.ModelProto, metadata: Mapping[str, str]) -> None:
    """Replace the model's metadata. Keys are sorted, so that equal exports give equal files."""
    del model.metadata_props[:]
    for key in sorted(metadata):
        model.metadata_props.add(key=key, value=valid_utf8(metadata[key]))
    model.producer_name, model.producer_version = "triton_sam", ""


def store_half(model: onnx.ModelProto) -> None:
    """Store FP32 weights as FP16, each followed by a Cast, which ONNX Runtime folds when it loads the model.

    The arithmetic stays FP32, but each weight is rounded to FP16 (relative error up to 2^-11). Small tensors and the
    defaults of inputs are not changed.
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


def is_large(model: onnx.ModelProto, later: Later = _NOTHING) -> bool:
    """Return whether the weights exceed EXTERNAL_DATA_LIMIT."""
    return sum(size_of(item, later) for item in model.graph.initializer) > EXTERNAL_DATA_LIMIT


def fill(model: onnx.ModelProto, later: Later) -> None:
    """Compute the weights without content, and put them into the model."""
    for item in model.graph.initializer:
        if item.name in later:
            item.raw_data = later[item.name]().tobytes()


def save(model: onnx.ModelProto, path: Path, later: Later = _NOTHING) -> list[Path]:
    """Write a model. Weights above EXTERNAL_DATA_LIMIT are moved from the model to `<name>.data` in the same folder.

    Returns:
        The written files, all flushed to the disk.
    """
    model.ir_version = min(model.ir_version, MAX_IR_VERSION)
    written = [path]
    if is_large(model, later):
        written.append(path.with_name(path.name + ".data"))
        move_out(model, written[1], later)
        later = _NOTHING
    write(model, path, later)
    for file in written:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    return written


def check(path: Path) -> None:
    """Check a file by the rules of ONNX. This loads the whole file, so free its graph first."""
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"the exported graph is not valid ONNX: {first_line(error)}") from error


def try_out(path: Path) -> None:
    """Load a model in ONNX Runtime on the CPU and run it once.

    Dynamic dimensions are 1, and optional inputs have their defaults.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        runtime_session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = {item.name: _example(item) for item in runtime_session.get_inputs()}
        outputs = runtime_session.run(None, inputs)
    except Exception as error:  # ONNX Runtime's errors share no base class below Exception
        raise ExportError(f"ONNX Runtime refuses the exported {path.name}: {first_line(error)}") from error
    if not all(np.isfinite(output).all() for output in outputs):
        raise ExportError(f"an output of the exported {path.name} contains NaN or infinity")


def _example(item: onnxruntime.NodeArg) -> npt.NDArray[np.generic]:
    shape = [side if isinstance(side, int) else 1 for side in item.shape]
    return np.ones(shape, np.int64) if item.type == "tensor(int64)" else np.full(shape, 0.5, np.float32)
