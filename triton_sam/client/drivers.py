"""Sends the requests of a flow to a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .._common.tracing import span
from ..errors import InferenceError, ServerError
from ..transport.base import Tensors
from ..wire.contract import read_error
from ..wire.pair import Request
from .flows import Flow

Result = TypeVar("Result")


def carry(flow: Flow[Result], send: Callable[[Request], Tensors]) -> Result:
    """Run a flow to its end and block until each answer arrives.

    Args:
        flow: a flow that has not started yet.
        send: sends a request and returns the answer.

    Raises:
        SamError: a request failed, and the flow has no remedy. A refusal with a code has the type of the code.
    """
    with span(f"triton_sam.{getattr(flow, '__name__', 'flow')}"):
        try:
            request = next(flow)
            while True:
                try:
                    outputs = send(request)
                except ServerError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(outputs)
        except StopIteration as end:
            result: Result = end.value
            return result
        except InferenceError as error:
            meant = read_error(error)
            raise meant from (None if meant is error else error)
