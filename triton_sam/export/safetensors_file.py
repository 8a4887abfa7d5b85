"""Read a safetensors file: the length of the header (8 bytes), the header (JSON), and the tensors."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from typing import Any

from .stored import DTYPES, Stored, UnsupportedError, part

MAX_HEADER = 100_000_000
"""The format's maximum size of the header, in bytes."""

_LENGTH = 8
_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def read_safetensors(mapped: mmap.mmap) -> dict[str, Stored]:
    """Return the tensors of a safetensors file."""
    length = int.from_bytes(mapped[:_LENGTH], "little")
    first = _LENGTH + length
    if length > MAX_HEADER or first > len(mapped):
        raise ValueError("the header of safetensors is cut off or too long")
    header: dict[str, Any] = json.loads(mapped[_LENGTH:first].decode())
    header.pop("__metadata__", None)
    tensors, parts = {}, []
    for name, entry in header.items():
        start, stop = _offsets(name, entry, len(mapped) - first)
        tensors[name] = _tensor(mapped, name, entry, first + start, first + stop)
        parts.append((start, stop))
    # The format forbids gaps and overlaps, so a gap or overlap means that the header or the file is damaged.
    end = 0
    for start, stop in sorted(parts):
        if start != end:
            raise ValueError("the tensors of safetensors overlap or leave a gap")
        end = stop
    if first + end != len(mapped):
        raise ValueError("the file ends at another byte than the last tensor")
    return tensors


def _offsets(name: str, entry: Any, size: int) -> tuple[int, int]:
    start, stop = entry["data_offsets"]
    if type(start) is not int or type(stop) is not int or not 0 <= start <= stop <= size:
        raise ValueError(f"the tensor {name!r} does not lie inside the file")
    return start, stop


def _tensor(mapped: mmap.mmap, name: str, entry: Mapping[str, Any], start: int, stop: int) -> Stored:
    if entry["dtype"] not in _NAMES:
        raise UnsupportedError(f"has the tensor {name!r} of the unsupported type {entry['dtype']!r}")
    dtype = DTYPES[_NAMES[entry["dtype"]]]
    count, rest = divmod(stop - start, dtype.itemsize)
    tensor = Stored(lambda: part(mapped, start, stop), count, dtype, entry["shape"])
    if rest or math.prod(tensor.shape) != count:
        raise ValueError(f"the tensor {name!r} has a shape of another size than its data")
    return tensor
