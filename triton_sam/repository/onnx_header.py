"""Read the metadata of an ONNX file without the onnx package and without reading its weights.

An ONNX file is one protobuf message, ModelProto. Each field begins with a varint of (number << 3 | wire type), and the
content of a field with wire type 2 begins with its length. So one seek skips the graph with all its weights.
Reference: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

GUARD_KEY = "triton_sam.guard"
"""Key of the metadata of graphs that refuse tensors of wrong sizes; see triton_sam.export.guards."""
GUARD = "1"
"""The value of GUARD_KEY: the version of the guard."""

_METADATA_PROPS = 14  # ModelProto.metadata_props, repeated StringStringEntryProto
_KEY, _VALUE = 1, 2  # of StringStringEntryProto
_MAX_ENTRY = 1 << 20  # bytes; longer entries of metadata are skipped
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata_props of an ONNX file.

    Raises:
        ValueError: the file is not an ONNX model, or it is truncated.
    """
    metadata: dict[str, str] = {}
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"{path} is empty")
    with path.open("rb") as stream:
        while stream.tell() < size:
            number, content = _field(stream, size, wanted=(_METADATA_PROPS,))
            if number == _METADATA_PROPS and content is not None:
                key, value = _entry(content)
                metadata[key] = value
    return metadata


def _field(stream: BinaryIO, size: int, wanted: Collection[int]) -> tuple[int, bytes | None]:
    """Read one field. Return its number, and its content if it is wanted; skip other content."""
    tag = _varint(stream)
    number, kind = tag >> 3, tag & 7
    if number == 0:
        raise ValueError("not an ONNX model")
    if kind == _VARINT:
        _varint(stream)
        return number, None
    if kind not in (_FIXED64, _BYTES, _FIXED32):
        raise ValueError("not an ONNX model")
    length = _varint(stream) if kind == _BYTES else {_FIXED64: 8, _FIXED32: 4}[kind]
    if stream.tell() + length > size:
        raise ValueError("the ONNX model is truncated")
    if number in wanted and kind == _BYTES and length <= _MAX_ENTRY:
        return number, stream.read(length)
    stream.seek(length, os.SEEK_CUR)
    return number, None


def _entry(content: bytes) -> tuple[str, str]:
    """Decode one StringStringEntryProto; return its key and value."""
    stream, parts = io.BytesIO(content), {_KEY: b"", _VALUE: b""}
    while stream.tell() < len(content):
        number, part = _field(stream, len(content), wanted=(_KEY, _VALUE))
        parts[number] = part or b""
    return parts[_KEY].decode("utf-8", "replace"), parts[_VALUE].decode("utf-8", "replace")


def _varint(stream: BinaryIO) -> int:
    value = shift = 0
    while shift < 64:
        byte = stream.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
    raise ValueError("not an ONNX model")
