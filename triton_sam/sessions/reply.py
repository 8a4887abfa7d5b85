"""The answer to one request of a session model, with the counts for its metrics."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

Tensors = dict[str, npt.NDArray[Any]]


@dataclass
class Reply:
    """The answer to one request.

    Args:
        tensors: outputs by name; after an error only ``result_json``, if the request can read the error there.
        error: the error of the request, or None.
        counts: amounts to add to the counters, by the names in metrics.py.
        seconds: duration of each step in seconds.
        undo: closes what the request has opened, if its client does not get the answer.
    """

    tensors: Tensors = field(default_factory=dict)
    error: Exception | None = None
    counts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    seconds: dict[str, float] = field(default_factory=dict)
    undo: Callable[[], None] | None = None

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Record the duration of a step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = time.perf_counter() - began
