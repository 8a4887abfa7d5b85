"""Random pauses before retries."""

from __future__ import annotations

import random


def spread(seconds: float) -> float:
    """Return a random part, 50 to 100 %, of a pause, so that clients that failed together do not retry together."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311
