"""Measures the delays on a busy machine, for tests that check durations."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


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
