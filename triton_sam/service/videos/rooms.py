"""The service's folder for videos, and the resources of one video: a place, bytes of the disk, and a folder."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from .. import background
from ..budgets import Lease

try:
    import fcntl
except ImportError:  # Windows has no such locks, so nothing is removed there
    fcntl = None  # type: ignore[assignment]

PREFIX = "triton-sam-videos-"


class Folder:
    """A new temporary folder, locked as long as this process lives.

    Creating it removes this user's folders that no running service has locked.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            self._descriptor = _lock(self.path)
            if fcntl is None or self._descriptor is not None:
                return
            # Another starting service removed the folder as abandoned before it was locked.

    def new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.path))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(folder: Path) -> int | None:
    """Lock a folder if it still exists and is not locked; return the descriptor that holds the lock, else None."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove_abandoned() -> None:
    if fcntl is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
        descriptor = _lock(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


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
