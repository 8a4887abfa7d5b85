"""The KServe v2 protocol over HTTP for an event loop. It runs blocking calls in threads.

The loop is not blocked while the threads copy arrays, and cancelling shuts down the connection, which ends a call at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy.typing as npt

from .base import Tensors
from .kserve import KServeClient
from .timed_sockets import Call
from .url import ServerUrl

Result = TypeVar("Result")
_Job = Callable[[], Callable[[], object]]
"""Makes a call and returns the function that delivers its result or error."""


class AsyncKServeClient:
    """Calls one server over HTTP, on one event loop; see AsyncProtocolClient.

    Args:
        url: of the server, with an optional base path.
        connections: maximum number of simultaneous calls; further calls wait.
        headers: sent with every call.
        ca_certs: PEM file with the certificates to trust, for https; None for the system's.
    """

    def __init__(
        self, url: ServerUrl, *, connections: int, headers: Mapping[str, str] | None = None, ca_certs: str | None = None
    ) -> None:
        self._client = KServeClient(url, headers=headers, ca_certs=ca_certs)
        self._threads = CallThreads()
        self._places = asyncio.Semaphore(connections)

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], call: Call
    ) -> dict[str, npt.NDArray[Any]]:
        """See AsyncProtocolClient."""
        async with self._places:
            return await self._threads.run(partial(self._client.infer, model, inputs, outputs, call), call)

    async def model_config(self, model: str, call: Call) -> dict[str, Any]:
        """See AsyncProtocolClient."""
        async with self._places:
            return await self._threads.run(partial(self._client.model_config, model, call), call)

    async def is_model_ready(self, model: str, call: Call) -> bool:
        """See AsyncProtocolClient."""
        async with self._places:
            return await self._threads.run(partial(self._client.is_model_ready, model, call), call)

    async def close(self) -> None:
        """See AsyncProtocolClient."""
        self._threads.close()
        self._client.close()


class CallThreads:
    """Runs calls in reusable threads. They are daemon threads, which do not delay the end of the process."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = 0
        self._closed = False
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], Result], call: Call) -> Result:
        """Run ``work`` in a thread and return its result. Cancelling this coroutine cancels ``call``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def job() -> Callable[[], object]:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the waiting coroutine receives every error
                deliver = partial(_unless_done, future, partial(future.set_exception, error))
            else:
                deliver = partial(_unless_done, future, partial(future.set_result, result))
            return partial(loop.call_soon_threadsafe, deliver)

        self._start(job)
        try:
            return await future
        finally:
            call.cancel()  # has no effect on a call that has ended

    def close(self) -> None:
        """End idle threads now, and busy threads after their calls."""
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
            with self._lock:  # first, because the coroutine may submit the next job as soon as it gets the result
                closed = self._closed
                self._idle += not closed
            with contextlib.suppress(RuntimeError):  # the loop has ended, so that no coroutine waits any more
                tell()
            if closed:
                return
            del job, tell  # free the arrays of the call
            job = self._jobs.get()


def _unless_done(future: asyncio.Future[Any], deliver: Callable[[], None]) -> None:
    if not future.done():
        deliver()
