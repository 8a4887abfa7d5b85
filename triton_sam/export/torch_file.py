"""Read a torch.save() file without torch: a zip archive with a pickle and one record for each storage."""

from __future__ import annotations

import mmap
import struct
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._common.text import one_line
from ..errors import CheckpointError
from .plain_pickle import Name, PlainPickle, checked_dict
from .stored import DTYPES, Stored, UnsupportedError, part

MAX_PICKLE = 32 * 2**20
"""Maximum size of the pickle, in bytes; 10,000 tensors need less than 2 MB."""

_HEADER = struct.Struct("<4s22xHH")
_UTF8, _ENCRYPTED = 0x800, 0x1
_STORAGES = {
    "torch.DoubleStorage": "float64", "torch.FloatStorage": "float32", "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16", "torch.LongStorage": "int64", "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16", "torch.CharStorage": "int8", "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
}  # fmt: skip
_UNTYPED_STORAGE = "torch.storage.UntypedStorage"


class Storage(NamedTuple):
    """A storage of a file: the buffer of one or several tensors."""

    source: Callable[[], memoryview | bytes]
    elements: int
    dtype: np.dtype[Any] | None  # None: only its tensors have a type


def read_torch_file(mapped: mmap.mmap, archive: zipfile.ZipFile) -> Any:
    """Return the content of a torch.save() file, with each tensor as a Stored."""
    return _TorchFile(mapped, archive).content()


class _TorchFile:
    def __init__(self, mapped: mmap.mmap, archive: zipfile.ZipFile) -> None:
        self._mapped = mapped
        self._archive = archive
        self._prefix = archive.namelist()[0].partition("/")[0]
        known: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor": _tensor,
            "torch._utils._rebuild_tensor_v2": _tensor,
            "torch._utils._rebuild_tensor_v3": _tensor_of_type,
            "torch._utils._rebuild_parameter": _parameter,
            "torch._utils._rebuild_parameter_with_state": _parameter,
            "torch._tensor._rebuild_from_type_v2": self._rebuilt,
            "torch.nn.parameter.Parameter": _parameter,
            "collections.OrderedDict": checked_dict,
        }
        self._pickle = PlainPickle(known, self._storage)

    def content(self) -> Any:
        order = f"{self._prefix}/byteorder"
        if order in self._archive.NameToInfo and bytes(self._record("byteorder")[1]()) != b"little":
            raise UnsupportedError("is not little-endian: only PyTorch reads it")
        size, pickle = self._record("data.pkl")
        if size > MAX_PICKLE:
            raise ValueError(f"its pickle has {size} bytes, more than {MAX_PICKLE}")
        return self._pickle.read(bytes(pickle()))

    def _record(self, name: str) -> tuple[int, Callable[[], memoryview | bytes]]:
        """Return the size of a record, and a function that returns its bytes."""
        info = self._archive.getinfo(f"{self._prefix}/{name}")
        size = info.file_size
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
            return size, lambda: self._decompressed(info)
        signature, name_length, extra_length = _HEADER.unpack_from(self._mapped, info.header_offset)
        start = info.header_offset + _HEADER.size
        own_name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
        if signature != b"PK\x03\x04" or self._mapped[start : start + name_length] != own_name:
            raise ValueError(f"the record {name!r} is not at its place")
        start += name_length + extra_length
        if size != info.compress_size or start + size > len(self._mapped):
            raise ValueError(f"the record {name!r} is cut off")
        return size, lambda: part(self._mapped, start, start + size)

    def _decompressed(self, info: zipfile.ZipInfo) -> bytes:
        try:
            data = self._archive.read(info)
            if len(data) != info.file_size:
                raise ValueError("it is cut off")
            return data
        except MemoryError:
            raise
        except Exception as error:  # the decompressors share no base class below Exception
            raise CheckpointError(f"cannot decompress {info.filename!r}: {one_line(error)}") from error

    def _storage(self, identifier: Any) -> Storage:
        kind, storage_type, key, _location, elements = identifier
        if kind != "storage" or type(storage_type) is not Name or type(key) is not str or type(elements) is not int:
            raise ValueError("the pickle has an unknown kind of persistent id")
        if storage_type not in (*_STORAGES, _UNTYPED_STORAGE):
            raise UnsupportedError(f"has a tensor of the unsupported type {str(storage_type)[:200]!r}")
        size, source = self._record(f"data/{key}")
        dtype = DTYPES[_STORAGES[storage_type]] if storage_type in _STORAGES else None
        if size != elements * (dtype.itemsize if dtype else 1):
            raise ValueError(f"the storage {key!r} has {size} bytes, which is not the size of its tensors")
        return Storage(source, elements, dtype)

    def _rebuilt(self, name: Any, _kind: Any, arguments: Any, _state: Any) -> Any:
        """Return a tensor without its attributes."""
        return self._pickle.call(name, arguments)


def _tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, _gradient: Any = None, _hooks: Any = None, more: Any = None
) -> Stored:
    if type(storage) is not Storage or storage.dtype is None:
        raise ValueError("a tensor has a storage without a type")
    if more:
        raise UnsupportedError("has a tensor that is negated or conjugated lazily")
    return Stored(storage.source, storage.elements, storage.dtype, shape, offset=offset, strides=strides)


def _tensor_of_type(*arguments: Any) -> Any:
    """Refuse a tensor of a type without its own storage type, for example FP8."""
    dtype = next((argument for argument in arguments if type(argument) is Name), "?")
    raise UnsupportedError(f"has a tensor of the unsupported type {dtype!r}")


def _parameter(data: Any, *_: Any) -> Any:
    return data
