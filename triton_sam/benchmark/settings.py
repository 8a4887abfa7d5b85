"""The settings of a benchmark: its sections, contenders and durations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConfigurationError

SECTIONS = ("latency", "comparison", "throughput", "speculative", "load", "words")
ALTERNATIVES = ("torch", "torch-bf16", "inprocess", "openvino", "naive")
"""Contenders other than the session model: the official predictor in PyTorch, also under autocast to bf16; ONNX Runtime
in this process (the lower limit of every server), also with its encoder in bf16 on OpenVINO; and a naive client that
sends embeddings with each click."""
DEFAULT_COMPARE = ("torch", "inprocess", "naive")
"""The contenders without further packages that compute in fp32, as the server does by default."""
MAX_ROUNDS = 25
MAX_ENCODING = 4
"""Maximum number of users who send images concurrently. Further images would only be queued."""


@dataclass(frozen=True)
class BenchmarkSettings:
    """The settings of a benchmark. The field names are those of the JSON file.

    Args:
        duration: seconds for which each measurement is repeated; ``least_rounds`` may take longer.
        sections: names from SECTIONS. They run in this order.
        think: mean pause of a user between two clicks in the load test, in seconds.
    """

    duration: float = 3.0
    sections: tuple[str, ...] = SECTIONS
    compare: tuple[str, ...] = DEFAULT_COMPARE
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16)
    boxes: tuple[int, ...] = (1, 4, 16, 64)
    users: int = 8
    think: float = 1.0
    load_seconds: float = 15.0
    least_rounds: int = 3

    def __post_init__(self) -> None:
        durations = (self.duration, self.load_seconds)
        if not all(0 < seconds < math.inf for seconds in durations) or not 0 <= self.think < math.inf:  # refuses NaN
            raise ConfigurationError("durations must be above 0 s, the pause of a user at least 0 s, and all finite")
        if not self.sections:
            raise ConfigurationError(f"nothing to measure: name at least one of {', '.join(SECTIONS)}")
        if not self.concurrency or min(self.concurrency) < 1 or min(self.users, self.least_rounds) < 1:
            raise ConfigurationError("there must be at least one user and one round")
        for option, names, known in (
            ("--only", self.sections, SECTIONS),
            ("--compare", self.compare, ALTERNATIVES),
        ):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ConfigurationError(f"{option}: {unknown[0]!r} is unknown: choose from {', '.join(known)}")
