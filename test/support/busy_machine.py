"""Allowance for a machine that is busy with others, for tests of how long something takes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def standstill() -> Iterator[list[float]]:
    """Add up the seconds for which the machine, busy with others, let no thread of this process run on time."""
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
