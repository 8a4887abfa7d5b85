"""Waits for a condition, with a limit that holds on a busy machine, or for a counter to settle."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE = 120.0
"""Timeout of a condition in seconds."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)


async def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true, and call it in the event loop, which goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        await asyncio.sleep(0.002)


def eventually(step: Callable[[], Value], seconds: float = PATIENCE, errors: type[Exception] = Exception) -> Value:
    """Repeat a step until it raises no error and returns another value than False; return the value."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            value = step()
            if value is not False:
                return value
            assert time.monotonic() < deadline, f"False for {seconds:g} s"
        except errors:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def settled(read: Callable[[], Value]) -> Value:
    """Return the value that ``read()`` returns four times in a row. Triton, for example, counts after it answers."""
    values: list[Value] = []
    while len(values) < 4 or any(value != values[-1] for value in values[-4:]):
        time.sleep(0.05)
        values.append(read())
    return values[-1]


@contextlib.contextmanager
def standstill() -> Iterator[list[float]]:
    """Yield a list whose item is the number of seconds that this process has lost to other programs so far.

    A thread measures by how much its short sleeps are too long.
    """
    lost, stop = [0.0], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            began = time.monotonic()
            time.sleep(0.01)
            lost[0] += time.monotonic() - began - 0.01

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        stop.set()
        thread.join()
