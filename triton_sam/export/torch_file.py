"""Read a torch.save() file without torch: a zip archive with a pickle and one record for each storage.

The pickle is read without executing its code: only data, and calls of functions that are allowed by name. All other
calls become an empty Foreign, because training programs often store objects of their own classes beside the
weights.

pickle.Unpickler with a restricted find_class() would not be enough: a pickle could still change the attributes of
allowed functions, and fill the memory with a large index of its memo. So this interprets the opcodes itself, as
PyTorch does for ``weights_only``; pickletools splits the pickle into opcodes.
"""

from __future__ import annotations

import mmap
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._common.text import one_line
from ..errors import CheckpointError
from .stored import DTYPES, Stored, UnsupportedError, part

_CONSTANTS = frozenset(
    {
        "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
        "SHORT_BINSTRING", "BINSTRING", "BINBYTES", "SHORT_BINBYTES",
    }
)  # fmt: skip
_NEW: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list,
}  # fmt: skip
_ALIASES = {
    "BINPUT": "PUT", "LONG_BINPUT": "PUT", "BINGET": "GET", "LONG_BINGET": "GET",
    "APPENDS": "EXTEND", "ADDITEMS": "EXTEND", "NEWOBJ": "REDUCE", "FROZENSET": "TUPLE",
}  # fmt: skip
_IGNORED = ("PROTO", "FRAME", "STOP")
_LENGTHS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Name(str):
    """The name of a function or class in a pickle, for example ``torch.FloatStorage``."""

    __slots__ = ()


class Foreign:
    """An empty placeholder for an object of an unknown class."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class PlainPickle:
    """Interprets one pickle. Sets become lists, because checkpoints of weights do not need sets."""

    def __init__(self, known: Mapping[str, Callable[..., Any]], persistent: Callable[[Any], Any]) -> None:
        self._known = known
        self._persistent = persistent
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def read(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            self._execute(_ALIASES.get(opcode.name, opcode.name), argument)
        return self._stack.pop()

    def _execute(self, opcode: str, argument: Any) -> None:
        if opcode in _CONSTANTS:
            self._stack.append(argument)
        elif opcode in _NEW:
            self._stack.append(_NEW[opcode]())
        elif opcode in _LENGTHS:
            self._stack.append(tuple(self._take(_LENGTHS[opcode])))
        elif opcode not in _IGNORED:
            execute = getattr(self, f"_op_{opcode.lower()}", None)
            if execute is None:
                raise ValueError(f"the pickle has the unsupported opcode {opcode}")
            execute(argument)

    def _take(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise ValueError("the pickle takes more values than it has")
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def _op_mark(self, _: None) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        values = self._stack
        self._stack = self._marked.pop()
        return values

    def _op_tuple(self, _: None) -> None:
        values = self._since_mark()  # before the stack, which it changes
        self._stack.append(tuple(values))

    def _op_append(self, _: None) -> None:
        self._into_list(self._take(1))

    def _op_extend(self, _: None) -> None:
        self._into_list(self._since_mark())

    def _into_list(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is list:
            target.extend(values)
        elif type(target) is not Foreign:
            raise ValueError("the pickle appends to something that is not a list")

    def _op_setitem(self, _: None) -> None:
        self._into_dict(self._take(2))

    def _op_setitems(self, _: None) -> None:
        self._into_dict(self._since_mark())

    def _into_dict(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is dict:
            target.update(checked_dict(zip(values[::2], values[1::2], strict=True)))
        elif type(target) is not Foreign:
            raise ValueError("the pickle sets an item of something that is not a dict")

    def _op_put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _op_memoize(self, _: None) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _op_get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def _op_global(self, words: str) -> None:
        self._name(words.replace(" ", "."))

    def _op_stack_global(self, _: None) -> None:
        module, name = self._take(2)
        self._name(f"{module}.{name}" if type(module) is type(name) is str else "")

    def _name(self, name: str) -> None:
        self._stack.append(Name(name.replace("__builtin__.", "builtins.")))  # Python 2's name, from protocol 2

    def _op_binpersid(self, _: None) -> None:
        self._stack.append(self._persistent(*self._take(1)))

    def _op_reduce(self, _: None) -> None:
        name, arguments = self._take(2)
        self._stack.append(self.call(name, arguments))

    def _op_newobj_ex(self, _: None) -> None:
        name, arguments, _options = self._take(3)
        self._stack.append(self.call(name, arguments))

    def call(self, name: Any, arguments: Any) -> Any:
        """Return the result of a known function, or a Foreign for any other name."""
        if type(name) not in (Name, Foreign):
            raise ValueError("the pickle calls something that is not a function")
        if type(name) is Foreign or name not in self._known:
            return Foreign(str(name))
        if type(arguments) is not tuple:
            raise ValueError("the pickle calls a function without arguments")
        return self._known[name](*arguments)

    def _op_build(self, _: None) -> None:
        self._take(1)  # the state of an OrderedDict (_metadata) or a Parameter is not needed for the weights


def checked_dict(items: Iterable[tuple[Any, Any]] = ()) -> dict[Any, Any]:
    """Return a dict of pairs whose keys must be plain values, so that hashing a key is fast and not recursive."""
    plain = (str, int, float, bool, bytes, type(None), Name, Foreign)
    made = {}
    for key, value in items:
        if not all(type(part) in plain for part in (key if type(key) is tuple else [key])):
            raise ValueError("the pickle has a dict with a key that is not a plain value")
        made[key] = value
    return made


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
