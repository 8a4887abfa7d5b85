"""The values that were used last, within a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteLru(Generic[Key, Value]):
    """Keeps the values that were used last, never more than ``limit`` bytes, a single larger value aside.

    It takes no lock: a caller with several threads holds one of its own.

    Args:
        limit: bytes; may be changed, which counts from the next put() or resize().
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> Iterator[Value]:
        """Iterate over the values; the one unused for longest comes first."""
        return (value for value, _ in self._entries.values())

    def peek(self, key: Key) -> Value | None:
        """Return a value and leave its age as it is; None when it is not kept."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def get(self, key: Key) -> Value | None:
        """Return a value, which makes it the one used last; None when it is not kept."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self.peek(key)

    def put(self, key: Key, value: Value, nbytes: int) -> int:
        """Keep a value, in place of an older one of that key; those unused for longest make room first.

        Returns:
            How many values of other keys had to go.
        """
        self.remove(key)
        evicted = 0
        while self._entries and self._nbytes + nbytes > self.limit:
            self.remove_oldest()
            evicted += 1
        self._entries[key] = value, nbytes
        self._nbytes += nbytes
        return evicted

    def resize(self, key: Key, nbytes: int) -> None:
        """Count a kept value anew, and let those unused for longest go until the limit holds, itself included."""
        value, before = self._entries[key]
        self._entries[key] = value, nbytes
        self._nbytes += nbytes - before
        while len(self._entries) > 1 and self._nbytes > self.limit:
            self.remove_oldest()

    def remove(self, key: Key) -> bool:
        """Let a value go; False when it is not kept."""
        entry = self._entries.pop(key, None)
        self._nbytes -= entry[1] if entry else 0
        return entry is not None

    def remove_oldest(self) -> int:
        """Let the value go that was unused for longest; return its bytes.

        Raises:
            KeyError: none is kept.
        """
        _, (_, nbytes) = self._entries.popitem(last=False)
        self._nbytes -= nbytes
        return nbytes
