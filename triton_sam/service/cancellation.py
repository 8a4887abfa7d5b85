"""Runs work for a client; it ends when the client disconnects, cancels its `session_id`, or after the timeout."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from .metrics import Metrics
from .problems import Problem, cancelled

Result = TypeVar("Result")

FILE_SECONDS = 1800.0
"""Timeout of work that writes all images or frames to a file."""


class CancellableRequests:
    """Running requests. A request with a ``session_id`` can be cancelled with it.

    The ``session_id`` comes from the 2024 API: the client chooses it, and sends it with its requests.
    """

    def __init__(self, timeout: float, metrics: Metrics) -> None:
        self._timeout = timeout
        self._metrics = metrics
        self._tasks: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)

    async def run(
        self,
        request: Request,
        work: Coroutine[Any, Any, Result],
        session_id: str | None = None,
        *,
        timeout: float | None = None,
    ) -> Result:
        """Return the result of ``work``.

        Args:
            timeout: maximum seconds; None: the timeout of every request.
        """
        seconds = self._timeout if timeout is None else timeout
        task = asyncio.create_task(work)
        gone = asyncio.create_task(_disconnected(request))
        self.name(task, session_id)
        try:
            await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
            fault = gone.exception() if gone.done() else None
            if fault is not None:
                raise fault  # a body that the route does not read is too large or too slow
            if task.done() or gone.done():
                self._metrics.cancelled.inc()
                raise cancelled()
            raise Problem(504, f"no result within {seconds:g} s: try again, or send fewer objects", code="timeout")
        finally:
            for part in (task, gone):
                part.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    def name(self, task: asyncio.Task[Any], session_id: str | None) -> None:
        """Let a client cancel a task by ``session_id`` until the task ends."""
        if session_id is not None:
            self._tasks[session_id].add(task)
            task.add_done_callback(lambda done: self._forget(session_id, done))

    def cancel(self, session_id: str) -> int:
        tasks = list(self._tasks.get(session_id, ()))
        for task in tasks:
            task.cancel()
        return len(tasks)

    def _forget(self, session_id: str, task: asyncio.Task[Any]) -> None:
        self._tasks[session_id].discard(task)
        if not self._tasks[session_id]:
            del self._tasks[session_id]


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected. An unread body is dropped."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
