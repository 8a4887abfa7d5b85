"""Read a pickle without executing its code: only data, and calls of functions that the caller allows by name.

All other calls become an empty Foreign, because training programs often store objects of their own classes beside the
weights.

pickle.Unpickler with a restricted find_class() would not be enough: a pickle could still change the attributes of
allowed functions, and fill the memory with a large index of its memo. So this interprets the opcodes itself, as
PyTorch does for ``weights_only``; pickletools splits the pickle into opcodes.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
        """Prepare for one pickle."""
        self._known = known
        self._persistent = persistent
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def read(self, data: bytes) -> Any:
        """Return the content of a pickle."""
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
