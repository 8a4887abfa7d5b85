"""Carries out the decisions of `Lanes`: sends requests from threads and stores results in futures."""

from __future__ import annotations

import contextvars
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from ..errors import ConfigurationError, InputError
from ..transport.threads import Threads
from .lanes import Actions, Job, Lanes, State

Outcome = TypeVar("Outcome")


@dataclass(eq=False)
class Work(Generic[Outcome]):
    """One prediction.

    Args:
        future: receives the result. The caller may cancel it.
    """

    call: Callable[[], Outcome]
    future: Future[Outcome] = field(default_factory=Future)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    running: Future[None] | None = None


class Dispatcher:
    """Sends requests in the order that `Lanes` decide. Every method may be called from any thread.

    Args:
        lanes: decide the order; the dispatcher uses them only while it holds its lock.
    """

    def __init__(self, threads: Threads, lanes: Lanes[Work[Any]]) -> None:
        self._threads = threads
        self._lanes = lanes
        # Re-entrant, because a cancelled future runs its callbacks in the thread that cancels it.
        self._lock = threading.RLock()

    def submit(
        self, works: Sequence[Work[Outcome]], lane: str | None, request_id: str | None = None
    ) -> list[Job[Work[Any]]]:
        """Queue requests of one lane, the newest last; ``request_id`` requires a single one. start() sends them."""
        self._threads.check()
        with self._lock:
            if request_id is not None and self._lanes.get(request_id) is not None:
                raise InputError(f"a request with the id {request_id!r} has not ended yet")
            jobs: list[Job[Work[Any]]] = [Job(request_id or uuid.uuid4().hex, lane, work) for work in works]
            step = self._lanes.submit(jobs)
            self._send_and_end(step)
        _cancel_futures(step)
        for job in jobs:
            job.work.future.add_done_callback(partial(self._forward_cancel, job))
        return jobs

    def start(self) -> None:
        """Send the requests that are allowed to start now."""
        self.change(Lanes.start)

    def change(self, act: Callable[[Lanes[Work[Any]]], Actions[Work[Any]]]) -> int:
        """Change the lanes; return the number of requests that the change cancelled."""
        self._threads.check_process()
        with self._lock:
            step = act(self._lanes)
            self._send_and_end(step)
        _cancel_futures(step)
        return len(step.cancelled)

    def counts(self, lane: str) -> dict[str, int]:
        """See Lanes.counts()."""
        self._threads.check_process()
        with self._lock:
            return self._lanes.counts(lane)

    @property
    def sent(self) -> int:
        """Number of requests that have been started so far."""
        self._threads.check_process()
        with self._lock:
            return self._lanes.sent

    def close(self) -> None:
        """Cancel all requests. In a forked child this does nothing, because the requests are those of its parent."""
        if not self._threads.is_inherited:
            self.change(Lanes.cancel_everything)

    def _send_and_end(self, step: Actions[Work[Any]]) -> None:
        for job in step.aborted:
            if job.work.running is not None:
                job.work.running.cancel()
        for job in step.start:
            if job.state is not State.RUNNING:  # a future that was cancelled meanwhile has cancelled it
                continue
            try:
                job.work.running = self._threads.submit(partial(self._send, job), job.work.context)
            except ConfigurationError:  # another thread has closed the client
                job.work.future.cancel()

    def _send(self, job: Job[Work[Any]]) -> None:
        work = job.work
        try:
            result = work.call()
        except CancelledError:
            self._finish(job, State.CANCELLED, work.future.cancel)
        except Exception as error:  # noqa: BLE001 - the waiting caller receives every error
            self._finish(job, State.FAILED, partial(work.future.set_exception, error))
        else:
            self._finish(job, State.COMPLETED, partial(work.future.set_result, result))

    def _finish(self, job: Job[Work[Any]], state: State, resolve: Callable[[], object]) -> None:
        with self._lock:
            step = self._lanes.finish(job, state)
            if step is None:
                return
            self._send_and_end(step)
        # From here on only the owner can cancel the future, and after the next line the owner cannot either.
        if state is State.CANCELLED or job.work.future.set_running_or_notify_cancel():
            resolve()
        _cancel_futures(step)

    def _forward_cancel(self, job: Job[Work[Any]], future: Future[Any]) -> None:
        if future.cancelled() and not self._threads.is_inherited:
            self.change(lambda lanes: lanes.cancel(job.id) if lanes.get(job.id) is job else Actions())


def _cancel_futures(step: Actions[Work[Any]]) -> None:
    for job in step.cancelled:
        job.work.future.cancel()
