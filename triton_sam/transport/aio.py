"""The round trip of the async client: tritonclient's aio clients, with cancellation that reaches the wire."""

from __future__ import annotations

import asyncio
import io
import os
import ssl
import time
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy.typing as npt

from ..errors import ServerTimeoutError, ServerUnreachableError
from .base import Tensors
from .options import certificates, check_times, grpc_options, request_headers
from .retry import Attempts
from .triton import infer_input, map_error, read_outputs
from .url import ServerUrl

Result = TypeVar("Result")

LARGE = 1 << 20
"""Bytes from which an input is kept in the form in which it is sent: that is, embeddings."""


class AsyncTransport:
    """Calls one Triton server from one event loop. Cancelling a call cancels it on the wire, too.

    HTTP: the connection is dropped. Triton gives up a request that it has not read to its end; one that it has read it
    computes (2.51; nobody looks at the connection meanwhile). gRPC: the call is cancelled, and Triton drops it from its
    queue.

    Args:
        url: parsed URL.
        timeout: seconds that one call may take.
        retries: how often a call is repeated when the connection could not be made or broke; see in_time().
        headers: sent with every call.
        ca_certs: PEM file with the certificates to trust, for https and grpcs; None for the system's.
        connections: calls at a time.

    Raises:
        ConfigurationError: an argument that cannot work.
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
    ) -> None:
        check_times(timeout, retries)
        self._url = url
        self._timeout = timeout
        self._retries = retries
        self._headers = request_headers(url, headers)
        self._ca_certs = certificates(ca_certs)
        self._connections = connections
        self._inputs = _Inputs(_protocol(url))
        self._client: Any = None

    async def in_time(self, call: Coroutine[Any, Any, Result], end: float | None = None) -> Result:
        """Wait for what may take several requests and their repetitions, for as long as one call may take.

        Args:
            call: to wait for; cancelled when it takes longer.
            end: of the monotonic clock; None: the timeout counts from now.

        Raises:
            ServerTimeoutError: it took longer.
        """
        left = self._timeout if end is None else end - time.monotonic()
        try:
            return await asyncio.wait_for(call, left)
        except asyncio.TimeoutError:
            raise ServerTimeoutError(f"no answer from {self._url} in time") from None

    async def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference; the newest version of the model answers. See Transport.infer.

        Raises:
            ServerError: see triton_sam.errors.
        """
        attempts = Attempts(self._retries)
        while True:
            client = self._client = self._client or self._connect()
            try:
                return await self._infer_once(client, model, inputs, outputs)
            except Exception as error:  # noqa: BLE001 - pause_after() raises it again
                mapped = map_error(error, self._url, model)
                # See options._GRPC_OPTIONS. Not closed: other calls may be on the wire, and the last one closes it.
                if self._url.is_grpc and self._client is client and isinstance(mapped, ServerUnreachableError):
                    self._client = None
                pause = attempts.pause_after(error, mapped)  # in_time() watches over the time of the whole call
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _infer_once(
        self, client: Any, model: str, inputs: Tensors, outputs: Sequence[str]
    ) -> dict[str, npt.NDArray[Any]]:
        module = self._inputs.module
        # tritonclient adds its own to the headers, hence a new dictionary for each call.
        options: dict[str, Any] = {"headers": dict(self._headers)}
        if self._url.is_grpc:
            options["client_timeout"] = self._timeout
        answer = await client.infer(
            model,
            [self._inputs.get(name, array) for name, array in inputs.items()],
            outputs=[module.InferRequestedOutput(name) for name in outputs],
            **options,
        )
        return read_outputs(answer, model, outputs)

    def _connect(self) -> Any:
        if self._url.is_grpc:
            return self._inputs.module.InferenceServerClient(
                self._url.address,
                ssl=self._url.is_secure,
                root_certificates=self._ca_certs,
                channel_args=grpc_options(self._url),
            )
        return _http_client(self._inputs.module)(
            self._url.address,
            ssl=self._url.is_secure,
            ssl_context=ssl.create_default_context(cafile=self._ca_certs) if self._url.is_secure else None,
            conn_limit=self._connections,
            conn_timeout=self._timeout,
        )


class _Inputs:
    """Arrays in tritonclient's form. Embeddings are copied once for all the requests that carry them."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self._large: dict[int, tuple[weakref.ref[npt.NDArray[Any]], Any]] = {}

    def get(self, name: str, array: npt.NDArray[Any]) -> Any:
        if array.nbytes < LARGE:
            return infer_input(self.module, name, array)
        key = id(array)
        reference, tensor = self._large.get(key, (None, None))
        if reference is None or reference() is not array:
            tensor = infer_input(self.module, name, array)
            self._large[key] = weakref.ref(array, lambda _: self._large.pop(key, None)), tensor
        return tensor


def _protocol(url: ServerUrl) -> ModuleType:
    """Import only the protocol that is asked for."""
    if url.is_grpc:
        import tritonclient.grpc.aio as protocol
    else:
        import tritonclient.http.aio as protocol
    return protocol  # type: ignore[no-any-return]


def _http_client(module: ModuleType) -> Any:
    class HttpClient(module.InferenceServerClient):  # type: ignore[misc, name-defined]
        """Sends the body in pieces: in one piece, its 17 MB would be copied once more and hold up the event loop."""

        async def _post(self, request_uri: str, request_body: bytes, headers: Any, query_params: Any) -> Any:
            return await super()._post(request_uri, io.BytesIO(request_body), headers, query_params)

    return HttpClient
