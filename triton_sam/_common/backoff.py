"""Pauses before something is tried again."""

from __future__ import annotations

import random


def spread(seconds: float) -> float:
    """Return half of a pause to all of it, at random, so that those who failed together do not come back together."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311
