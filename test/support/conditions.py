"""Waits for a condition, with a limit that holds on a busy machine, or for a counter to settle."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE = 60.0
"""Timeout of a condition in seconds."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)


def settled(read: Callable[[], Value]) -> Value:
    """Return the value that ``read()`` returns four times in a row. Triton, for example, counts after it answers."""
    values: list[Value] = []
    while len(values) < 4 or any(value != values[-1] for value in values[-4:]):
        time.sleep(0.05)
        values.append(read())
    return values[-1]
