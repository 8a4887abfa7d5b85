"""Signals that end a command: they raise KeyboardInterrupt, so that the command removes its temporary files."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

_SECONDS_FOR_CLEANING_UP = 5.0
"""Further signals are ignored for this time, so that an impatient second Ctrl-C does not interrupt the clean-up."""


@contextlib.contextmanager
def ends_by_interrupt() -> Iterator[None]:
    """While the block runs, let SIGTERM and SIGINT raise KeyboardInterrupt in the main thread.

    Python itself does so for SIGINT only, and not if the program was started with SIGINT ignored, as a shell does with
    jobs in the background. In other threads, this context changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may change signal handlers
        return
    last = -_SECONDS_FOR_CLEANING_UP

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_FOR_CLEANING_UP:
            last = now
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
