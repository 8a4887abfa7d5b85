"""Work that ends when its client goes away, cancels it by its session id, or the time is up."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from .metrics import Metrics
from .problems import Problem, cancelled

Result = TypeVar("Result")


class CancellableRequests:
    """All requests that are being worked on, some of them with a ``session_id`` by which they can be cancelled.

    The ``session_id`` is the one of the 2024 API: a client makes it up and names it with its requests.

    Args:
        timeout: seconds that one may take.
        metrics: what cancelled ones are counted into.
    """

    def __init__(self, timeout: float, metrics: Metrics) -> None:
        self._timeout = timeout
        self._metrics = metrics
        self._tasks: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)

    async def run(self, request: Request, work: Coroutine[Any, Any, Result], session_id: str | None = None) -> Result:
        """Return the result of ``work``.

        Raises:
            Problem: 499, the client went away or cancelled its session id; 504, the time is up. The work is cancelled
                then, down to Triton.
        """
        task = asyncio.create_task(work)
        gone = asyncio.create_task(_disconnected(request))
        if session_id is not None:
            self._tasks[session_id].add(task)
        try:
            await asyncio.wait({task, gone}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
            if task.done() or gone.done():
                self._metrics.cancelled.inc()
                raise cancelled()
            raise Problem(504, f"no result within {self._timeout:g} s", code="timeout")
        finally:
            self._forget(session_id, task)
            for part in (task, gone):
                part.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    def cancel(self, session_id: str) -> int:
        """Cancel all requests with a session id; return how many there were."""
        tasks = list(self._tasks.get(session_id, ()))
        for task in tasks:
            task.cancel()
        return len(tasks)

    def _forget(self, session_id: str | None, task: asyncio.Task[Any]) -> None:
        if session_id is None:
            return
        self._tasks[session_id].discard(task)
        if not self._tasks[session_id]:
            del self._tasks[session_id]


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
