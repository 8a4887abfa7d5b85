"""Carries out the decisions of `Lanes`: sends requests on the I/O loop and stores results in thread-safe futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from ..errors import ConfigurationError, InputError
from ..transport.base import AsyncBaseTransport, Tensors
from ..wire.pair import ConfigRequest, Request
from .drivers import carry_async
from .flows import Flow
from .io_loop import IO_LOOP
from .lanes import Job, Lanes, State, Step

Outcome = TypeVar("Outcome")

SECONDS_TO_CLOSE = 5.0


@dataclass(eq=False)
class Work(Generic[Outcome]):
    """One prediction: its flow, and the future that receives the result.

    The steps of the flow run on the event loop, so they must be quick. They run in the context of the caller, where
    OpenTelemetry keeps the current span.
    """

    flow: Flow[Outcome]
    future: concurrent.futures.Future[Outcome] = field(default_factory=concurrent.futures.Future)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    task: asyncio.Task[None] | None = None


class Dispatcher:
    """Sends requests in the order that `Lanes` decide. Every method may be called from any thread.

    Args:
        transport: sends the requests; the dispatcher uses it only on the I/O loop.
        lanes: decide on the order; the dispatcher uses them only while it holds its lock.
    """

    def __init__(self, transport: AsyncBaseTransport, lanes: Lanes[Work[Any]]) -> None:
        self._transport = transport
        self._lanes = lanes
        # Re-entrant, because a cancelled future runs its callbacks in the thread that cancels it.
        self._lock = threading.RLock()
        self._loop = IO_LOOP.acquire()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: concurrent.futures.Future[None] | None = None
        self._process_id = os.getpid()

    def submit(
        self, works: Sequence[Work[Outcome]], lane: str | None, request_id: str | None = None
    ) -> list[Job[Work[Any]]]:
        """Queue requests of one lane, the newest last. start() sends them. With ``request_id``, give only one request.

        Raises:
            InputError: an earlier request with this id has not ended yet.
            ConfigurationError: the client is closed, or it belongs to the parent of this process.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            if request_id is not None and self._lanes.get(request_id) is not None:
                raise InputError(f"a request with the id {request_id!r} has not ended yet")
            jobs: list[Job[Work[Any]]] = [Job(request_id or uuid.uuid4().hex, lane, work) for work in works]
            for job in jobs:
                job.work.future.add_done_callback(partial(self._forward_cancel, job))
            step = self._lanes.submit(jobs)
        self._carry_out(step)
        return jobs

    def start(self) -> None:
        """Send the requests that are allowed to start now."""
        self.change(Lanes.start)

    def infer(self, request: Request, end: float | None = None) -> concurrent.futures.Future[Tensors]:
        """Run an inference outside of all lanes.

        Args:
            request: the inference.
            end: time of the monotonic clock, in seconds, at which it must have ended; None: the timeout of a call.

        Raises:
            ConfigurationError: the client is closed, or it belongs to the parent of this process.
        """
        return self._submit(self._infer, request, end)

    def is_ready(self, model: str) -> concurrent.futures.Future[bool]:
        """Ask outside of all lanes whether the server has a model ready.

        Raises:
            ConfigurationError: the client is closed, or it belongs to the parent of this process.
        """
        return self._submit(self._is_ready, model)

    def change(self, act: Callable[[Lanes[Work[Any]]], Step[Work[Any]]]) -> int:
        """Change the lanes; return the number of requests that the change cancelled.

        Raises:
            ConfigurationError: the client belongs to the parent of this process.
        """
        self._check_process()
        with self._lock:
            step = act(self._lanes)
        self._carry_out(step)
        return len(step.cancelled)

    def counts(self, lane: str) -> dict[str, int]:
        """See Lanes.counts()."""
        self._check_process()
        with self._lock:
            return self._lanes.counts(lane)

    @property
    def sent(self) -> int:
        """Number of requests that have been started so far."""
        self._check_process()
        with self._lock:
            return self._lanes.sent

    def close(self) -> concurrent.futures.Future[None]:
        """Cancel all requests and close the connections. The future ends when this is done. Repeated calls are safe.

        In a forked child this does nothing, because requests and connections are those of its parent.
        """
        if self._is_inherited:
            done: concurrent.futures.Future[None] = concurrent.futures.Future()
            done.set_result(None)
            return done
        with self._lock:
            if self._closing is not None:
                return self._closing
            step = self._lanes.cancel_everything()
            self._closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        self._carry_out(step)
        return self._closing

    def close_when_forgotten(self) -> None:
        """Close after the owner was garbage collected, which can happen in any thread, or when the program ends."""
        closing = self.close()
        if not IO_LOOP.is_current_thread():
            with contextlib.suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
                closing.result(SECONDS_TO_CLOSE)

    @property
    def _is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that made the client.

        The thread of the loop does not exist in a child, and the lock may be held by a thread that does not either.
        """
        return os.getpid() != self._process_id

    def _submit(
        self, call: Callable[..., Coroutine[Any, Any, Outcome]], *arguments: object
    ) -> concurrent.futures.Future[Outcome]:
        """Run a call on the I/O loop."""
        self._check_process()
        with self._lock:
            self._check_open()
            return asyncio.run_coroutine_threadsafe(call(*arguments), self._loop)

    def _check_process(self) -> None:
        if self._is_inherited:
            raise ConfigurationError(
                "this client belongs to the process that made it: make a new client in this process"
            )

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ConfigurationError("this client is closed")

    def _carry_out(self, step: Step[Work[Any]]) -> None:
        for job in step.cancelled:
            job.work.future.cancel()
        if step.aborted or step.start:
            with contextlib.suppress(RuntimeError):  # the loop has ended: another thread has closed the client
                self._loop.call_soon_threadsafe(self._on_loop, step)

    def _on_loop(self, step: Step[Work[Any]]) -> None:
        for job in step.aborted:
            if job.work.task is not None:
                job.work.task.cancel()
        for job in step.start:
            if job.state is State.RUNNING:  # otherwise it was cancelled in the meantime
                job.work.task = job.work.context.run(self._start, self._send(job))

    def _start(self, call: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        task = self._loop.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, job: Job[Work[Any]]) -> None:
        work = job.work
        try:
            result = await self._transport.in_time(carry_async(work.flow, self._ask))
        except asyncio.CancelledError:
            self._finish(job, State.CANCELLED, work.future.cancel)
        except Exception as error:  # noqa: BLE001 - the waiting caller receives every error
            failure = error
            self._finish(job, State.FAILED, lambda: work.future.set_exception(failure))
        else:
            self._finish(job, State.COMPLETED, lambda: work.future.set_result(result))

    def _finish(self, job: Job[Work[Any]], state: State, resolve: Callable[[], object]) -> None:
        with self._lock:
            step = self._lanes.finish(job, state)
        # From here on only the owner can cancel the future, and after the next line the owner cannot either.
        if step is not None and (state is State.CANCELLED or job.work.future.set_running_or_notify_cancel()):
            resolve()
        if step is not None:
            self._carry_out(step)

    def _forward_cancel(self, job: Job[Work[Any]], future: concurrent.futures.Future[Any]) -> None:
        if future.cancelled() and not self._is_inherited:
            self.change(lambda lanes: lanes.cancel(job.id) if lanes.get(job.id) is job else Step())

    async def _infer(self, request: Request, end: float | None) -> Tensors:
        return await self._start(self._ask_in_time(request, end))

    async def _ask_in_time(self, request: Request, end: float | None) -> Tensors:
        # The coroutine of the request is made here, once the task runs. Python warns of a coroutine that nobody awaits,
        # which is what remains if a task is cancelled before it starts and had received the coroutine as an argument.
        return await self._transport.in_time(self._ask(request), end)

    async def _is_ready(self, model: str) -> bool:
        return await self._start(self._transport.is_ready(model))

    async def _ask(self, request: Request) -> Tensors:
        if isinstance(request, ConfigRequest):
            return await self._transport.model_config(request.model)
        return await self._transport.infer(request.model, request.inputs, request.outputs)

    async def _close(self) -> None:
        try:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._transport.close()
        finally:
            IO_LOOP.release()
