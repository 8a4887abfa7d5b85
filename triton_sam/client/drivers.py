"""Carry the requests of a flow to a server: one driver that blocks, one that awaits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from ..errors import ServerError
from ..transport.base import Tensors
from ..wire.pair import Request
from .flows import Flow

Result = TypeVar("Result")


RunStep = Callable[..., Awaitable[Request | None]]
"""Takes a flow one step further: called with the step and its arguments, as asyncio.to_thread is."""


class Steps(Generic[Result]):
    """A flow on its way. Each step returns the request that is to be sent next, None once there is a result.

    A generator says that it has ended by StopIteration, which no task or future can pass on; None they can.

    Args:
        flow: one that has not begun.
    """

    result: Result

    def __init__(self, flow: Flow[Result]) -> None:
        self._flow = flow

    def begin(self) -> Request | None:
        """Take the first step."""
        return self._step(self._flow.__next__)

    def answered(self, outputs: Tensors) -> Request | None:
        """Go on with the answer to the last request."""
        return self._step(self._flow.send, outputs)

    def failed(self, error: ServerError) -> Request | None:
        """Go on after an error; it is raised where the flow knows no help."""
        return self._step(self._flow.throw, error)

    def _step(self, step: Callable[..., Request], *arguments: object) -> Request | None:
        try:
            return step(*arguments)
        except StopIteration as end:
            self.result = end.value
            return None


def carry(flow: Flow[Result], send: Callable[[Request], Tensors]) -> Result:
    """Carry a flow to its end, and wait for each answer.

    Args:
        flow: one that has not begun.
        send: sends a request and returns the answer.
    """
    steps = Steps(flow)
    request = steps.begin()
    while request is not None:
        try:
            outputs = send(request)
        except ServerError as error:
            request = steps.failed(error)
        else:
            request = steps.answered(outputs)
    return steps.result


async def at_once(step: Callable[..., Request | None], /, *arguments: Any) -> Request | None:
    """Take a step here and now: for flows whose steps are light."""
    return step(*arguments)


async def carry_async(
    flow: Flow[Result], send: Callable[[Request], Awaitable[Tensors]], run_step: RunStep = at_once
) -> Result:
    """Carry a flow to its end. Cancelling this cancels the request that is under way.

    Args:
        flow: one that has not begun.
        send: sends a request and returns the answer.
        run_step: runs the flow's own code between two requests.
    """
    steps = Steps(flow)
    request = await run_step(steps.begin)
    while request is not None:
        try:
            outputs = await send(request)
        except ServerError as error:
            request = await run_step(steps.failed, error)
        else:
            request = await run_step(steps.answered, outputs)
    return steps.result
