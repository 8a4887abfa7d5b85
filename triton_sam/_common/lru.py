"""A cache of the most recently used values, limited in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteLru(Generic[Key, Value]):
    """Keeps the most recently used values, at most ``limit`` bytes. Only a single value may be larger than that.

    All methods are thread-safe.

    Args:
        limit: maximum size in bytes, or maximum number of values if put() receives no sizes. Changes take effect at the
            next put() or resize().
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        """Size of all values in bytes."""
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[Value]:
        """Return the values, starting with the least recently used."""
        with self._lock:
            return [value for value, _ in self._entries.values()]

    def peek(self, key: Key) -> Value | None:
        """Return a value without marking it as used; None if it is not in the cache."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def get(self, key: Key) -> Value | None:
        """Return a value and mark it as the most recently used; None if it is not in the cache."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: Value, nbytes: int = 1) -> int:
        """Add a value, or replace the value of its key, after evicting the least recently used values if needed.

        Returns:
            The number of evicted values of other keys.
        """
        with self._lock:
            self.nbytes -= self._entries.pop(key, (None, 0))[1]
            evicted = 0
            while self._entries and self.nbytes + nbytes > self.limit:
                self.remove_oldest()
                evicted += 1
            self._entries[key] = value, nbytes
            self.nbytes += nbytes
            return evicted

    def resize(self, key: Key, nbytes: int) -> None:
        """Change the size of a value, and evict the least recently used values, perhaps this one, beyond the limit."""
        with self._lock:
            value, before = self._entries[key]
            self._entries[key] = value, nbytes
            self.nbytes += nbytes - before
            while len(self._entries) > 1 and self.nbytes > self.limit:
                self.remove_oldest()

    def remove(self, key: Key) -> bool:
        """Remove a value. Return False if it is not in the cache."""
        with self._lock:
            entry = self._entries.pop(key, None)
            self.nbytes -= entry[1] if entry else 0
            return entry is not None

    def remove_oldest(self, keep: int = 0) -> int:
        """Remove the least recently used value, unless the cache holds at most ``keep`` bytes.

        Returns:
            The size of the removed value in bytes; 0 if none was removed.
        """
        with self._lock:
            if not self._entries or (keep and self.nbytes <= keep):
                return 0
            _, (_, nbytes) = self._entries.popitem(last=False)
            self.nbytes -= nbytes
            return nbytes

    def lower_limit(self, least: int) -> None:
        """Lower the limit to the current size, but not below ``least`` bytes. It never rises."""
        with self._lock:
            self.limit = min(self.limit, max(self.nbytes, least))
