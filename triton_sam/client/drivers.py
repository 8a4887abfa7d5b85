"""Send the requests of a flow to a server: `carry` blocks, `carry_async` awaits."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from .._common.tracing import span
from ..errors import ServerError
from ..transport.base import Tensors
from ..wire.pair import Request
from .flows import Flow

Result = TypeVar("Result")


RunStep = Callable[..., Awaitable[Request | None]]
"""Runs one step of a flow. It is called like asyncio.to_thread: with the step and its arguments."""


class Steps(Generic[Result]):
    """A running flow. Each step returns the next request to send, or None when ``result`` is set.

    A generator reports its end by StopIteration, which tasks and futures cannot transport. They can transport None.

    Args:
        flow: a flow that has not started yet.
    """

    result: Result

    def __init__(self, flow: Flow[Result]) -> None:
        self._flow = flow

    def begin(self) -> Request | None:
        """Take the first step."""
        return self._step(self._flow.__next__)

    def answered(self, outputs: Tensors) -> Request | None:
        """Continue with the answer to the last request."""
        return self._step(self._flow.send, outputs)

    def failed(self, error: ServerError) -> Request | None:
        """Continue after an error. The error is raised if the flow does not handle it."""
        return self._step(self._flow.throw, error)

    def _step(self, step: Callable[..., Request], *arguments: object) -> Request | None:
        try:
            return step(*arguments)
        except StopIteration as end:
            self.result = end.value
            return None


def carry(flow: Flow[Result], send: Callable[[Request], Tensors]) -> Result:
    """Run a flow to its end and block until each answer arrives.

    Args:
        flow: a flow that has not started yet.
        send: sends a request and returns the answer.
    """
    steps = Steps(flow)
    with _span(flow):
        request = steps.begin()
        while request is not None:
            try:
                outputs = send(request)
            except ServerError as error:
                request = steps.failed(error)
            else:
                request = steps.answered(outputs)
    return steps.result


def _span(flow: Flow[Any]) -> AbstractContextManager[object]:
    """Open the span of a flow. Its name is that of the function that wrote the flow, such as `triton_sam.encode`."""
    return span(f"triton_sam.{getattr(flow, '__name__', 'flow')}")


async def at_once(step: Callable[..., Request | None], /, *arguments: Any) -> Request | None:
    """Run a step directly on the event loop; for flows whose steps are quick."""
    return step(*arguments)


async def carry_async(
    flow: Flow[Result], send: Callable[[Request], Awaitable[Tensors]], run_step: RunStep = at_once
) -> Result:
    """Run a flow to its end. Cancelling this coroutine cancels the current request.

    Args:
        flow: a flow that has not started yet.
        send: sends a request and returns the answer.
        run_step: runs the code of the flow between two requests.
    """
    steps = Steps(flow)
    with _span(flow):
        request = await run_step(steps.begin)
        while request is not None:
            try:
                outputs = await send(request)
            except ServerError as error:
                request = await run_step(steps.failed, error)
            else:
                request = await run_step(steps.answered, outputs)
    return steps.result


def settle(future: concurrent.futures.Future[Any], task: asyncio.Task[Any]) -> None:
    """Cancel a future whose task was cancelled. Otherwise retrieve its error: asyncio logs one that nobody awaits."""
    if task.cancelled():
        future.cancel()
    else:
        task.exception()
