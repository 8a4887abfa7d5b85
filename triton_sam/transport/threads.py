"""Blocking calls for an event loop, each in a thread of its own, whose connection is shut down when it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from .timed_pool import Call

Result = TypeVar("Result")
_Job = Callable[[], Callable[[], object]]
"""Makes a call and returns the function that tells its outcome."""


class CallThreads:
    """Runs calls in threads that wait for the next call afterwards. They do not hold up the end of the process."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = 0
        self._closed = False
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], Result], call: Call) -> Result:
        """Return what ``work`` returns; when this coroutine is cancelled, so is the call that ``work`` makes."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def job() -> Callable[[], object]:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the coroutine that waits gets it
                deliver = partial(_unless_done, future, partial(future.set_exception, error))
            else:
                deliver = partial(_unless_done, future, partial(future.set_result, result))
            return partial(loop.call_soon_threadsafe, deliver)

        self._start(job)
        try:
            return await future
        finally:
            call.cancel()  # of no effect on a call that has ended

    def close(self) -> None:
        """Let all threads end, those with a call after it."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._jobs.put(None)

    def _start(self, job: _Job) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._jobs.put(job)
                return
        threading.Thread(target=self._work, args=(job,), name="triton-sam-call", daemon=True).start()

    def _work(self, job: _Job | None) -> None:
        while job is not None:
            tell = job()
            with self._lock:  # before the coroutine hears of it, which may have the next job
                closed = self._closed
                self._idle += not closed
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                tell()
            if closed:
                return
            del job, tell  # they hold the arrays of the call
            job = self._jobs.get()


def _unless_done(future: asyncio.Future[Any], deliver: Callable[[], None]) -> None:
    if not future.done():
        deliver()
