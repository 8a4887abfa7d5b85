"""The requests of a model: their places and threads, and how long they wait and take.

Triton's own timing of a request ends when ``execute`` returns, so its durations and its number of pending requests are
wrong for these models. Each `Task` therefore measures itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from ..errors import ServerBusyError
from .messages import Reply

MAX_WAITING = 8
"""Maximum number of requests of one SerialQueue that run or wait, so that one client cannot take all places."""


class TaskCancelledError(Exception):
    """The answer to a request is no longer needed."""

    reply: Reply | None = None
    """The reply with the counts of the work that was done."""


class Reports:
    """Runs the metric updates of a model in one thread: Triton 24.10 crashes if several threads update metrics."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "report")

    def submit(self, report: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # closed: the metrics end with the model
            self._thread.submit(report, *arguments)

    def close(self) -> None:
        """Wait for the running report and drop all others."""
        self._thread.shutdown(cancel_futures=True)


class Waiting:
    """Counts the waiting requests of each kind, and reports the counts. All methods are thread-safe.

    Args:
        kinds: kinds of requests, the values of the label ``kind``.
    """

    def __init__(self, kinds: Iterable[str], reports: Reports, set_waiting: Callable[[str, int], None]) -> None:
        self._reports = reports
        self._set_waiting = set_waiting
        self._lock = threading.Lock()
        self._numbers = dict.fromkeys(kinds, 0)
        self._reported = dict(self._numbers)
        self._report_is_due = False

    def change(self, kind: str, change: int) -> None:
        with self._lock:
            self._numbers[kind] += change
            # One report covers all changes until it runs; a request that starts at once rarely causes an update.
            due = not self._report_is_due and self._numbers != self._reported
            self._report_is_due |= due
        if due:
            self._reports.submit(self._report)

    def _report(self) -> None:
        with self._lock:
            self._report_is_due = False
            changed = {kind: number for kind, number in self._numbers.items() if number != self._reported[kind]}
            self._reported.update(changed)
        for kind, number in changed.items():
            self._set_waiting(kind, number)


class Pool:
    """The threads for one kind of requests, and the places of running and waiting requests.

    Each kind of requests has its own pool, so that one kind is never refused because of another.

    Args:
        name: the kind of requests, used as a label of metrics and as prefix of thread names.
    """

    def __init__(self, name: str, threads: int, pending: int) -> None:
        self.name = name
        self.threads = ThreadPoolExecutor(threads, name)
        self._free = pending
        self._lock = threading.Lock()

    def check_room(self) -> None:
        """Check that a place is free. Only the thread that calls this method takes places."""
        if self._free <= 0:
            raise ServerBusyError("too many requests wait here already: try again in a moment")

    def change_free(self, change: int) -> None:
        """Take a place (-1), or release one (1)."""
        with self._lock:
            self._free += change


_Work = tuple[Callable[[], None], "Future[None]"]


class SerialQueue:
    """Runs work in sequence on the threads of an executor. Waiting work does not occupy a thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._waiting: deque[_Work] = deque()
        self._is_running = False
        self._lock = threading.RLock()  # re-entrant, because submit() may drop work

    @property
    def is_busy(self) -> bool:
        return self._is_running

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Run work after all earlier work. The future is cancelled if the threads end before that."""
        future: Future[None] = Future()
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise ServerBusyError("too many requests wait for this session: wait for an answer first")
            self._waiting.append((work, future))
            if not self._is_running:
                self._is_running = True
                self._start_next()
        return future

    def _start_next(self) -> None:
        try:
            running = self._executor.submit(self._run, self._waiting[0])
        except RuntimeError:  # the executor has ended
            self._drop_all()
        else:
            running.add_done_callback(lambda done: self._drop_all() if done.cancelled() else None)

    def _drop_all(self) -> None:
        with self._lock:
            dropped, self._waiting = self._waiting, deque()
            self._is_running = False
        for _, future in dropped:
            future.cancel()

    def _run(self, item: _Work) -> None:
        if not self._waiting or self._waiting[0] is not item:
            return  # it was dropped
        work, future = item
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
            raise
        else:
            future.set_result(None)
        finally:
            with self._lock:
                self._waiting.popleft()
                self._is_running = bool(self._waiting)
                if self._is_running:
                    self._start_next()


class Task:
    """One request, from its arrival to its answer: it waits for a thread, and is processed inside ``with task:``.

    Args:
        trace: the OpenTelemetry trace that the request belongs to, or None.
    """

    def __init__(
        self, kind: str, waiting: Waiting, sender: Any = None, wanted: Container[str] = (), trace: Any = None
    ) -> None:
        self.kind = kind
        self.sender = sender
        self.wanted = wanted
        self.trace = trace
        self.waited = 0.0
        """Seconds of waiting so far."""
        self.took: float | None = None
        """Seconds from arrival to answer; None if there was no answer."""
        self.pool: Pool | None = None
        """The pool in which this request holds a place."""
        self._waiting = waiting
        self._arrival = time.perf_counter()
        self._wait_began: float | None = self._arrival
        waiting.change(kind, 1)

    def release(self) -> None:
        """Release the place, and end the waiting."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.change_free(1)
        self._end_waiting()

    def answered(self) -> None:
        """Record that the answer has been sent."""
        self.took = time.perf_counter() - self._arrival

    def __enter__(self) -> Task:
        self._end_waiting()
        self._token = CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._token)

    @contextlib.contextmanager
    def pausing(self) -> Iterator[Callable[[], None]]:
        """Count the time inside the block as waiting, until the first call of the yielded function."""
        self._wait_began = time.perf_counter()
        self._waiting.change(self.kind, 1)
        try:
            yield self._end_waiting
        finally:
            self._end_waiting()

    def _end_waiting(self) -> None:
        if self._wait_began is not None:
            self.waited += time.perf_counter() - self._wait_began
            self._wait_began = None
            self._waiting.change(self.kind, -1)


Submit = Callable[[Callable[[], None]], "Future[None]"]
"""Runs work later, in any thread."""
CURRENT: ContextVar[Task | None] = ContextVar("task", default=None)


@contextlib.contextmanager
def waiting() -> Iterator[Callable[[], None]]:
    """Count the time inside the block as waiting of the task of this thread, if there is one.

    Yields:
        A function that ends the waiting early, callable from any thread.
    """
    task = CURRENT.get()
    if task is None:
        yield lambda: None
        return
    with task.pausing() as end:
        yield end


@contextlib.contextmanager
def place_in(places: threading.Semaphore) -> Iterator[None]:
    """Hold a place of a semaphore during the block. The time until a place is free counts as waiting."""
    with waiting():
        places.acquire()
    try:
        yield
    finally:
        places.release()
