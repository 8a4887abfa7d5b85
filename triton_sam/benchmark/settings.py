"""What is measured, for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConfigurationError
from .link import parse_link

SECTIONS = ("latency", "comparison", "throughput", "speculative", "load", "overload")
OTHERS = ("torch", "inprocess", "naive")
"""Who else answers, in the comparison: the official predictor in PyTorch, ONNX Runtime in this process (the limit), and
a client that ships embeddings with each click."""
MAX_ROUNDS = 25
MAX_ENCODING = 4
"""Images that are sent at a time: more would only wait for each other."""


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        duration: seconds that each single measurement is repeated for, beyond the least number of rounds.
        sections: of SECTIONS, in this order.
        compare: of OTHERS.
        concurrency: users at a time, ascending.
        boxes: objects of one call, ascending.
        users: of the load test.
        think: mean pause of a user between two clicks, seconds.
        load_seconds: length of the load test, and of the overload.
        crowd: users of the overload, who click without a pause.
        least_rounds: how often everything is measured at least.
        link: network to emulate for clicks of the comparison, or "none"; see link.parse_link().

    Raises:
        ConfigurationError: a value out of range.
    """

    duration: float = 3.0
    sections: tuple[str, ...] = SECTIONS
    compare: tuple[str, ...] = OTHERS
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16)
    boxes: tuple[int, ...] = (1, 4, 16, 64)
    users: int = 8
    think: float = 1.0
    load_seconds: float = 15.0
    crowd: int = 64
    least_rounds: int = 3
    link: str = "1gbit,1ms"

    def __post_init__(self) -> None:
        durations = (self.duration, self.load_seconds)
        if not all(0 < seconds < math.inf for seconds in durations) or not 0 <= self.think < math.inf:  # NaN neither
            raise ConfigurationError("durations must be above 0 seconds, the pause of a user at least 0, and finite")
        if not self.sections:
            raise ConfigurationError(f"nothing to measure: name some of {', '.join(SECTIONS)}")
        if not self.concurrency or min(self.concurrency) < 1 or min(self.users, self.crowd, self.least_rounds) < 1:
            raise ConfigurationError("there must be at least one user and one round")
        parse_link(self.link)
        for names, known in ((self.sections, SECTIONS), (self.compare, OTHERS)):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ConfigurationError(f"there is no {unknown[0]!r}: {', '.join(known)}")


OVER_LINK = "click over a link"
