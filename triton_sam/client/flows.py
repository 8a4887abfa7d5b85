"""The sequences of requests behind the calls of a client.

A flow is a generator. It yields a `Request`; `carry` then sends it the answer, or throws an error of the type that the
error code stands for. The return value of the generator is the result of the call. Flows do no I/O, so that a test only
needs a list of answers.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from .._common.tracing import span
from ..errors import InferenceError, SamError, ServerError
from ..transport.base import BaseTransport, Tensors
from ..wire.contract import read_error
from ..wire.pair import ConfigRequest, Request

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Flow = Generator[Request, Tensors, Result]

ASK_AGAIN_SECONDS = 30.0
"""Seconds before a missing feature is looked up again: the server may have been restarted or updated."""


def carry(flow: Flow[Result], transport: BaseTransport) -> Result:
    """Run a flow to its end and block until each answer arrives."""
    with span(f"triton_sam.{getattr(flow, '__name__', 'flow')}"):
        try:
            request = next(flow)
            while True:
                try:
                    if isinstance(request, ConfigRequest):
                        outputs: Any = transport.model_config(request.model)
                    else:
                        outputs = transport.infer(request.model, request.inputs, request.outputs)
                except ServerError as error:
                    request = flow.throw(_meant(error))
                else:
                    request = flow.send(outputs)
        except StopIteration as end:
            result: Result = end.value
            return result


def _meant(error: ServerError) -> SamError:
    """Return the error that a code in the message stands for, or the error itself."""
    meant = read_error(error) if isinstance(error, InferenceError) else error
    if meant is not error:
        meant.__cause__ = error
    return meant


class Capabilities:
    """The inputs of a server's session model, from its configuration.

    Servers of earlier versions have fewer. A missing input is looked up again after `ASK_AGAIN_SECONDS`.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._inputs: frozenset[str] = frozenset()
        self._asked = -math.inf

    def has(self, name: str) -> Generator[Request, Mapping[str, Any], bool]:
        """Return whether the session model has an input. This flow usually sends no request."""
        if name not in self._inputs and time.monotonic() > self._asked + ASK_AGAIN_SECONDS:
            config = yield ConfigRequest(self._model)
            self._inputs = frozenset(tensor["name"] for tensor in config.get("input", ()))
            self._asked = time.monotonic()
        return name in self._inputs


class Notice:
    """A warning that is logged only once."""

    def __init__(self) -> None:
        self._is_logged = False

    def log(self, text: str) -> None:
        """Log a warning, unless one was logged before."""
        if not self._is_logged:
            self._is_logged = True
            logger.warning(text)
