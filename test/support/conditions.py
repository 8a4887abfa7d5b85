"""Waiting for a condition, with a limit that a busy machine keeps as well, and for a counter to settle."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE = 60.0
"""Seconds after which a condition counts as never met."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)


def settled(read: Callable[[], Value]) -> Value:
    """Return what ``read()`` gives four times in a row. Triton, for one, counts a moment after it has answered."""
    values: list[Value] = []
    while len(values) < 4 or any(value != values[-1] for value in values[-4:]):
        time.sleep(0.05)
        values.append(read())
    return values[-1]
