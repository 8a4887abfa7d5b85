"""Work that outlives the request that started it: it runs to completion, and its failures are logged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import SamError
from .logs import LOGGER
from .problems import Problem

Result = TypeVar("Result")
_RUNNING: set[asyncio.Task[Any]] = set()
"""The event loop itself holds only weak references to tasks."""


def start(work: Coroutine[Any, Any, object]) -> None:
    _held(work).add_done_callback(_log)


async def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of work that runs to completion even if the caller's task is cancelled."""
    task = _held(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_log)
        raise


async def wait() -> None:
    """Wait until no background work runs on this event loop."""
    loop = asyncio.get_running_loop()
    while running := [task for task in tuple(_RUNNING) if task.get_loop() is loop]:
        await asyncio.wait(running)


def _held(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    task = asyncio.create_task(work)
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)
    return task


def _log(task: asyncio.Task[Any]) -> None:
    """Log a fault of the service. Errors of the caller or of Triton are not logged, because the caller has left."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (Problem, SamError)):
        LOGGER.error("work in the background failed", exc_info=error)
