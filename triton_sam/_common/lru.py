"""A cache of the most recently used values, limited in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteLru(Generic[Key, Value]):
    """Keeps the most recently used values, at most ``limit`` bytes. Only a single value may be larger than that.

    It is not thread-safe: callers with several threads must hold a lock.

    Args:
        limit: maximum size in bytes. Changes take effect at the next put() or resize().
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Size of all values in bytes."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> Iterator[Value]:
        """Iterate over the values, starting with the least recently used."""
        return (value for value, _ in self._entries.values())

    def peek(self, key: Key) -> Value | None:
        """Return a value without marking it as used; None if it is not in the cache."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def get(self, key: Key) -> Value | None:
        """Return a value and mark it as the most recently used; None if it is not in the cache."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self.peek(key)

    def put(self, key: Key, value: Value, nbytes: int) -> int:
        """Add a value, or replace the value of its key, after evicting the least recently used values if needed.

        Returns:
            The number of evicted values of other keys.
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
        """Change the size of a value, and evict the least recently used values, perhaps this one, beyond the limit."""
        value, before = self._entries[key]
        self._entries[key] = value, nbytes
        self._nbytes += nbytes - before
        while len(self._entries) > 1 and self._nbytes > self.limit:
            self.remove_oldest()

    def remove(self, key: Key) -> bool:
        """Remove a value. Return False if it is not in the cache."""
        entry = self._entries.pop(key, None)
        self._nbytes -= entry[1] if entry else 0
        return entry is not None

    def remove_oldest(self) -> int:
        """Remove the least recently used value; return its size in bytes.

        Raises:
            KeyError: the cache is empty.
        """
        _, (_, nbytes) = self._entries.popitem(last=False)
        self._nbytes -= nbytes
        return nbytes
