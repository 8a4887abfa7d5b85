"""Runs calls in threads, and returns a future for each. Cancelling the future ends the call on the wire.

The calls of the asynchronous clients run here, so that any event loop and any thread can use the clients.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeVar

from ..errors import ConfigurationError
from .options import CLOSED

Result = TypeVar("Result")

SECONDS_TO_CLOSE = 5.0
MOST_THREADS = 64
"""Maximum concurrent calls of one client. Further calls wait; their timeouts begin when they are sent."""


class _Job:
    """The work of a thread, which other threads can end."""

    def __init__(self) -> None:
        self.is_cancelled = threading.Event()
        self._lock = threading.Lock()
        self._ends: list[Callable[[], object]] = []

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled.set()
            ends = list(self._ends)
        for end in ends:
            end()

    @contextlib.contextmanager
    def ended_by(self, end: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._ends.append(end)
        try:
            if self.is_cancelled.is_set():
                raise CancelledError
            yield
        except Exception:
            if self.is_cancelled.is_set():
                raise CancelledError from None
            raise
        finally:
            with self._lock:
                self._ends.remove(end)


_JOB: contextvars.ContextVar[_Job | None] = contextvars.ContextVar("job", default=None)


def ended_by(end: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
    """Call ``end`` if the job of this thread is cancelled inside the block, which then raises CancelledError.

    Outside of a job, this does nothing.
    """
    job = _JOB.get()
    return contextlib.nullcontext() if job is None else job.ended_by(end)


def pause(seconds: float) -> None:
    """Wait. If the job of this thread is cancelled, raise CancelledError."""
    woken = threading.Event()
    with ended_by(woken.set):
        if woken.wait(seconds):
            raise CancelledError


def result_of(future: Future[Result]) -> Result:
    """Wait for a future. If the job of this thread is cancelled, cancel the future and raise CancelledError."""
    with ended_by(future.cancel):
        return future.result()


class Threads:
    """Threads for the calls of one client. They are daemon threads, which do not delay the end of the process.

    A forked child process has none of the threads, so there every method but close() raises ConfigurationError.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._idle = 0
        """Threads without a call; negative: calls without a thread."""
        self._threads = self._busy = 0
        self._futures: set[Future[Any]] = set()
        self._closed = False
        # Re-entrant: the garbage collector may close an unused client while this thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._own = threading.local()
        self._process_id = os.getpid()

    def check_process(self) -> None:
        """Check that this process is not a forked child of the one that made the client.

        Raises:
            ConfigurationError: it is a forked child.
        """
        if self.is_inherited:
            raise ConfigurationError(
                "this client belongs to the process that made it: make a new client in this process"
            )

    def check(self) -> None:
        """Check that calls can run.

        Raises:
            ConfigurationError: close() was called, or see check_process().
        """
        self.check_process()
        if self._closed:
            raise ConfigurationError(CLOSED)

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that made the client."""
        return os.getpid() != self._process_id

    def submit(self, work: Callable[[], Result], context: contextvars.Context | None = None) -> Future[Result]:
        """Run ``work`` in a thread.

        Args:
            work: the call.
            context: the context of this call only; None: a copy of the caller's. OpenTelemetry keeps the current span
                there.

        Returns:
            A future that can be cancelled at any time before it has a result. Its work then ends as soon as it reaches
            a request, a pause or another future.

        Raises:
            ConfigurationError: see check().
        """
        self.check_process()  # first, because the lock may be held forever in a forked child
        future: Future[Result] = Future()
        job = _Job()
        future.add_done_callback(lambda done: job.cancel() if done.cancelled() else None)
        run = partial((context or contextvars.copy_context()).run, self._carry_out, job, future, work)
        with self._changed:
            self.check()
            self._futures.add(future)
            self._jobs.put(run)
            if self._idle > 0 or self._threads == MOST_THREADS:
                self._idle -= 1
                return future
            self._threads += 1
        threading.Thread(target=self._work, name="triton-sam-call", daemon=True).start()
        return future

    def close(self) -> None:
        """Cancel all calls, and wait a few seconds until they end. Repeated calls are safe.

        In a forked child this does nothing, because the calls are those of its parent.
        """
        if self.is_inherited:
            return
        with self._changed:
            self._closed = True
            futures, idle = list(self._futures), self._idle
        for future in futures:
            future.cancel()
        for _ in range(idle):
            self._jobs.put(None)
        if not getattr(self._own, "works", False):  # a thread cannot wait for its own call
            with self._changed:
                self._changed.wait_for(lambda: not self._busy, SECONDS_TO_CLOSE)

    @contextlib.contextmanager
    def not_awaited(self) -> Iterator[None]:
        """Let close() not wait for this block of a call."""
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._busy += 1

    def _carry_out(self, job: _Job, future: Future[Result], work: Callable[[], Result]) -> None:
        _JOB.set(job)
        with self._changed:
            self._busy += 1
        resolve: Callable[[], object] = future.cancel
        if not future.cancelled():
            try:
                resolve = partial(future.set_result, work())
            except BaseException as error:  # noqa: BLE001 - the waiting caller receives every error
                resolve = partial(future.set_exception, error)
        with self._changed:  # first, because the caller may submit the next call as soon as it receives the result
            self._futures.discard(future)
            self._busy -= 1
            self._idle += 1
            self._changed.notify_all()
        if future.set_running_or_notify_cancel():
            resolve()

    def _work(self) -> None:
        self._own.works = True
        while (run := self._jobs.get()) is not None:
            run()
            del run  # free the arrays of the call
            if self._closed:
                return
