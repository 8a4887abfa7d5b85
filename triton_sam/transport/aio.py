"""The transport of the async client. Cancelling a call also cancels it on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy.typing as npt

from ..errors import ServerError, ServerTimeoutError
from .base import Tensors
from .failures import all_outputs, map_error
from .options import Busy, certificates, check_times, request_headers, waits_if_busy
from .protocols import AsyncProtocolClient
from .retry import Attempts
from .timed_sockets import Call
from .triton import inference_span
from .url import ServerUrl

Result = TypeVar("Result")
_END: ContextVar[float] = ContextVar("end", default=math.inf)
"""Time of the monotonic clock at which in_time() ends the current call."""


class AsyncTransport:
    """Calls one Triton server from one event loop. Cancelling a call cancels it on the wire, too.

    Over HTTP, the transport drops the connection. Triton then abandons a request that it has not read completely, but
    still computes one that it has read, since it does not watch the connection while it computes (2.51). Over gRPC, the
    transport cancels the call, and Triton drops it from its queue.

    Args:
        url: parsed URL.
        timeout: seconds that one call may take.
        retries: how often a call is repeated if the connection cannot be made or breaks; see in_time().
        headers: sent with every call.
        ca_certs: PEM file with the certificates to trust, for https and grpcs; None for the system's.
        connections: maximum number of simultaneous calls.
        busy: see Transport.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        url: ServerUrl,
        *,
        timeout: float,
        retries: int,
        headers: Mapping[str, str] | None,
        ca_certs: str | os.PathLike[str] | None,
        connections: int,
        busy: Busy = "raise",
    ) -> None:
        check_times(timeout, retries)
        self._url = url
        self._timeout = timeout
        self._retries = retries
        self._waits_if_busy = waits_if_busy(busy)
        self._answered: set[str] = set()
        self._client = _connect(url, connections, request_headers(url, headers), certificates(ca_certs))

    async def in_time(self, call: Coroutine[Any, Any, Result], end: float | None = None) -> Result:
        """Wait for a call, which may consist of several requests and their repetitions, until it reaches its timeout.

        Args:
            call: the coroutine to wait for; it is cancelled at the timeout.
            end: time of the monotonic clock, in seconds, at which the call must end; None: now plus the timeout.

        Raises:
            ServerTimeoutError: the call reached its timeout. If it had no server at its last attempts, the error is
                theirs, a ServerUnreachableError.
        """
        left = self._timeout if end is None else end - time.monotonic()
        before = _END.set(time.monotonic() + left)  # the task of wait_for() gets a copy
        try:
            return await asyncio.wait_for(call, left)
        except asyncio.TimeoutError:
            raise ServerTimeoutError(f"no answer from {self._url} in time") from None
        finally:
            with contextlib.suppress(ValueError):  # this coroutine is closed elsewhere, because its loop has ended
                _END.reset(before)

    async def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference; the newest version of the model answers. See Transport.infer.

        Raises:
            ServerError: see triton_sam.errors.
        """
        with inference_span(model) as headers:
            arrays = await self._call(lambda call: self._client.infer(model, inputs, outputs, call), model, headers)
        return all_outputs(arrays, model, outputs)

    async def model_config(self, model: str) -> dict[str, Any]:
        """Return the configuration with which the server runs a model, as the JSON of the HTTP protocol.

        Raises:
            ServerError: see triton_sam.errors.
        """
        return await self._call(lambda call: self._client.model_config(model, call), model)

    async def _call(
        self, ask: Callable[[Call], Awaitable[Result]], model: str, headers: Mapping[str, str] | None = None
    ) -> Result:
        attempts = Attempts(self._retries, has_answered=model in self._answered, waits_if_busy=self._waits_if_busy)
        while True:
            try:
                answer = await ask(Call(time.monotonic() + self._timeout, headers))
                self._answered.add(model)
                return answer
            except Exception as error:  # noqa: BLE001 - pause_after() raises it again
                left = _END.get() - time.monotonic()
                pause = attempts.pause_after(error, map_error(error, self._url, model), left)
            await asyncio.sleep(pause)

    async def is_ready(self, model: str) -> bool:
        """Return whether the server answers and reports that a model is ready. There is one attempt."""
        try:
            return await self._client.is_model_ready(model, Call(time.monotonic() + self._timeout))
        except Exception as error:
            if isinstance(map_error(error, self._url, model), ServerError):
                return False
            raise

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def _connect(url: ServerUrl, connections: int, headers: Mapping[str, str], ca_certs: str | None) -> AsyncProtocolClient:
    """Connect by the protocol of the URL, and import only that one."""
    if url.is_grpc:
        from .grpc_aio import AsyncGrpcClient

        return AsyncGrpcClient(url, headers=headers, ca_certs=ca_certs)
    from .kserve_aio import AsyncKServeClient

    return AsyncKServeClient(url, connections=connections, headers=headers, ca_certs=ca_certs)
