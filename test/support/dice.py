"""Random failures, for tests that all resources are released after each."""

from __future__ import annotations

import random
import threading
from collections import Counter


class Dice:
    """Fails calls at random with a probability; counts the failures by place.

    Args:
        seed: seed of the random numbers.
        share: the probability of a failure at each place.
    """

    def __init__(self, seed: int = 0, share: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.share = share
        self.failures: Counter[str] = Counter()

    def roll(self, place: str) -> None:
        """Raise an error at random."""
        if self.hits(place):
            raise RuntimeError(f"{place} failed")

    def hits(self, place: str) -> bool:
        """Return whether a call fails."""
        with self._lock:
            hit = self._random.random() < self.share
            self.failures[place] += hit
        return hit
