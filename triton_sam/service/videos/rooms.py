"""A video's resources in the service: a place among the videos, bytes of the disk, and a folder."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from .. import background
from ..budgets import Lease

Result = TypeVar("Result")


class Room:
    """The place, bytes and folder of one video. The owner of a room must close() it."""

    def __init__(self, place: Lease, disk: Lease, make: Callable[[], Path]) -> None:
        self.disk = disk
        self.is_kept = False
        """Whether a new owner has taken the room, and closes it later."""
        self._place = place
        self._make = make
        self._folder: Path | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def folder(self) -> Path:
        """The folder, after open()."""
        if self._folder is None:
            raise RuntimeError("the room is not open")
        return self._folder

    async def open(self) -> None:
        def make() -> None:
            self._folder = self._make()  # in the thread, so that it is set even if the caller has left

        await self.run(make)

    async def run(self, work: Callable[[], Result], limit: asyncio.Semaphore | None = None) -> Result:
        """Call a function in a thread. The folder stays until the function ends, even if the caller leaves."""

        async def run() -> Result:
            async with limit or contextlib.nullcontext():
                return await run_in_threadpool(work)

        task = asyncio.create_task(run())
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def write(self, content: bytes, path: Path, before: int = 0) -> None:
        """Write a file to the folder."""
        grown = len(content) - before
        self.disk.grow(grown)
        try:
            await self.run(functools.partial(path.write_bytes, content))
        except Exception:
            self.disk.hold(self.disk.amount - grown)
            raise

    async def close(self) -> None:
        """Return everything, the folder first. Threads that still use it finish in the background before."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._running:
            background.start(self._close())
        else:
            await background.finish(self._close())

    async def _close(self) -> None:
        try:
            if self._running:
                await asyncio.wait(set(self._running))
            if self._folder is not None:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        finally:
            self.disk.give()
            self._place.give()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has received it, or has left
