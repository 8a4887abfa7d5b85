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
def ends_by_interrupt() -> Iterator[threading.Event]:
    """While the block runs, let SIGTERM and SIGINT raise KeyboardInterrupt in the main thread.

    Python swallows an exception that a handler raises while a finalizer runs, for example `__del__`. A block that would
    otherwise run forever must therefore check the event regularly.

    Python itself does this only for SIGINT, and not in background jobs, which a shell starts with SIGINT ignored. In
    other threads, this context has no effect.

    Yields:
        An event that is set when a signal arrives.
    """
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came  # only the main thread may change signal handlers
        return
    last = -_SECONDS_FOR_CLEANING_UP

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        came.set()
        now = time.monotonic()
        if now - last >= _SECONDS_FOR_CLEANING_UP:
            last = now
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGTERM and SIGINT while the block writes results or cleans up. In other threads, it has no effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
