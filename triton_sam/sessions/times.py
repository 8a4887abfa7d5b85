"""Measures requests that a model answers after ``execute`` has returned.

Triton's own timing of a request ends when ``execute`` returns, so its durations and its number of pending requests are
wrong for these models. A ``Clock`` measures one request; ``RequestTimes`` reports the clocks of a model as metrics.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Protocol


class TimeMetrics(Protocol):
    """Receives the times of requests. Only one thread calls the methods."""

    def observe(self, kind: str, waited: float, took: float | None) -> None:
        """Add one request to the histograms.

        Args:
            kind: the kind of the request.
            waited: seconds of waiting.
            took: seconds from arrival to answer; None if the request was cancelled.
        """

    def set_waiting(self, kind: str, number: int) -> None:
        """Set the number of waiting requests of a kind."""


class Reports:
    """Runs the metric updates of a model in one thread: Triton 24.10 crashes if several threads update metrics."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "report")

    def submit(self, report: Callable[..., None], *arguments: Any) -> None:
        """Schedule ``report(*arguments)``."""
        with contextlib.suppress(RuntimeError):  # closed: the metrics end with the model
            self._thread.submit(report, *arguments)

    def close(self) -> None:
        """Wait for the running report and drop the others."""
        self._thread.shutdown(cancel_futures=True)


class RequestTimes:
    """Measures the requests of a model and reports them. All methods are thread-safe.

    Args:
        metrics: receives the times.
        reports: runs the metric updates.
        kinds: kinds of requests, the values of the label ``kind``.
    """

    def __init__(self, metrics: TimeMetrics, reports: Reports, kinds: Iterable[str]) -> None:
        self._metrics = metrics
        self._reports = reports
        self._lock = threading.Lock()
        self._waiting = dict.fromkeys(kinds, 0)
        self._reported = dict(self._waiting)
        self._report_is_due = False

    def arrived(self, kind: str) -> Clock:
        """Return the clock of a request that arrives now and waits until ``with clock:``."""
        return Clock(self, kind)

    def count_waiting(self, kind: str, change: int) -> None:
        """Change the number of waiting requests."""
        with self._lock:
            self._waiting[kind] += change
            # One report covers all changes until it runs, so a request that starts at once rarely causes an update.
            due = not self._report_is_due and self._waiting != self._reported
            self._report_is_due |= due
        if due:
            self._reports.submit(self._report_waiting)

    def ended(self, kind: str, waited: float, took: float | None) -> None:
        """Report the end of a request."""
        self._reports.submit(self._metrics.observe, kind, waited, took)

    def _report_waiting(self) -> None:
        with self._lock:
            self._report_is_due = False
            changed = {kind: number for kind, number in self._waiting.items() if number != self._reported[kind]}
            self._reported.update(changed)
        for kind, number in changed.items():
            self._metrics.set_waiting(kind, number)


class Clock:
    """The clock of one request, a context manager: the model works on the request inside the block.

    Leaving the block reports the request, as answered only after a call of answered().
    """

    def __init__(self, times: RequestTimes, kind: str) -> None:
        self._times = times
        self._kind = kind
        self._arrival = time.perf_counter()
        self._waited = 0.0
        self._took: float | None = None
        self._wait_began: float | None = None
        self._wait()

    def __enter__(self) -> Clock:
        self._work()
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)
        self._work()
        self._times.ended(self._kind, self._waited, self._took)

    def refused(self) -> None:
        """Discard the clock of a refused request, instead of entering the block."""
        self._work()

    def answered(self) -> None:
        """Record that the answer has been sent."""
        self._took = time.perf_counter() - self._arrival

    @contextlib.contextmanager
    def waiting(self) -> Iterator[Callable[[], None]]:
        """Count the time inside the block as waiting, until the first call of the yielded function."""
        self._wait()
        try:
            yield self._work
        finally:
            self._work()

    def _wait(self) -> None:
        self._wait_began = time.perf_counter()
        self._times.count_waiting(self._kind, 1)

    def _work(self) -> None:
        if self._wait_began is not None:
            self._waited += time.perf_counter() - self._wait_began
            self._wait_began = None
            self._times.count_waiting(self._kind, -1)


_CURRENT: ContextVar[Clock | None] = ContextVar("clock", default=None)


@contextlib.contextmanager
def waiting() -> Iterator[Callable[[], None]]:
    """Count the time inside the block as waiting of the current request of this thread, if there is one.

    Yields:
        A function that ends the waiting early, callable from any thread.
    """
    clock = _CURRENT.get()
    if clock is None:
        yield lambda: None
        return
    with clock.waiting() as work:
        yield work


@contextlib.contextmanager
def place_in(places: threading.Semaphore) -> Iterator[None]:
    """Hold a place of a semaphore during the block. Time until a place is free counts as waiting."""
    with waiting():
        places.acquire()
    try:
        yield
    finally:
        places.release()
