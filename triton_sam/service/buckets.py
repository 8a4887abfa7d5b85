"""A token bucket: a rate limit that allows short bursts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class TokenBucket:
    """An amount that calls consume, refilled at a constant rate. It starts full."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._then = clock()

    def take(self, amount: float = 1.0) -> float:
        """Consume an amount and return 0; if too little is left, consume nothing and return the seconds to wait."""
        wait = self.missing(amount)
        if wait == 0:
            self._left -= amount
        return wait

    def missing(self, amount: float) -> float:
        """Return the seconds until an amount is available; 0: now; infinite: never."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._then) * self._rate)
        self._then = now
        if amount <= self._left:
            return 0.0
        return (amount - self._left) / self._rate if amount <= self._burst else math.inf
