"""Write ONNX files one weight at a time, to save memory.

An ONNX file is one protobuf message, ModelProto, which contains the graph, which contains the weights. A message
consists of its fields in any order, and the content of each field except numbers begins with its length. The fields are
written in the order of their numbers, as in protobuf. Reference: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

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
