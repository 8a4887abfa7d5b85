"""The event loop on which all async clients of this process do their I/O. It runs in its own thread.

Thanks to it, callers can use one client from several threads and event loops, and gRPC, which has one poller for each
process, sees a single loop. The thread starts with the first client and ends with the last.
"""

from __future__ import annotations

import asyncio
import os
import threading


class IoLoop:
    """The loop and the number of its users. Each process has one instance, `IO_LOOP`."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # Re-entrant: the garbage collector may release a forgotten client while this thread holds the lock.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._users = 0

    def acquire(self) -> asyncio.AbstractEventLoop:
        """Return the running loop. The caller must call release() once for each acquire()."""
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="triton-sam-io", daemon=True)
                self._thread.start()
            return self._loop

    def release(self) -> None:
        """Give the loop back. The last user's release() stops the loop without waiting for its end."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = self._thread = None

    def is_current_thread(self) -> bool:
        """Whether the caller runs on the loop's thread, where waiting for the loop would block forever."""
        return threading.current_thread() is self._thread

    def reset_after_fork(self) -> None:
        """Forget the thread of the parent process, which does not exist in a forked child."""
        self._reset()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


IO_LOOP = IoLoop()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=IO_LOOP.reset_after_fork)
