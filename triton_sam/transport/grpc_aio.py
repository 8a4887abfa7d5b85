"""Triton's gRPC protocol on an event loop, through tritonclient's aio client."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import tritonclient.grpc.aio

from ..errors import ServerUnreachableError
from .base import Tensors
from .failures import map_error
from .grpc_client import infer_input, lower_case, named_outputs
from .options import grpc_options
from .timed_sockets import Call
from .url import ServerUrl

LARGE = 1 << 20
"""Inputs of at least this many bytes, which are embeddings, are kept in serialized form for later requests."""


class AsyncGrpcClient:
    """Calls one server over gRPC, on one event loop; see AsyncProtocolClient.

    Args:
        url: of the server.
        headers: sent with every call, their names in lower case.
        ca_certs: PEM file with the certificates to trust, for grpcs; None for the system's.
    """

    def __init__(self, url: ServerUrl, *, headers: Mapping[str, str], ca_certs: str | None) -> None:
        self._url = url
        self._headers = headers
        self._ca_certs = ca_certs
        self._inputs = _Inputs()
        self._client: Any = None

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], call: Call
    ) -> dict[str, npt.NDArray[Any]]:
        """See AsyncProtocolClient."""
        with self._connected(model) as client:
            answer = await client.infer(
                model,
                [self._inputs.get(name, array) for name, array in inputs.items()],
                outputs=[tritonclient.grpc.aio.InferRequestedOutput(name) for name in outputs],
                **self._options(call),
            )
        return named_outputs(answer, outputs)

    async def model_config(self, model: str, call: Call) -> dict[str, Any]:
        """See AsyncProtocolClient."""
        with self._connected(model) as client:
            answer = await client.get_model_config(model, as_json=True, **self._options(call))
        return dict(answer["config"])

    async def is_model_ready(self, model: str, call: Call) -> bool:
        """See AsyncProtocolClient."""
        with self._connected(model) as client:
            return bool(await client.is_model_ready(model, **self._options(call)))

    async def close(self) -> None:
        """See AsyncProtocolClient."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _options(self, call: Call) -> dict[str, Any]:
        headers = lower_case({**self._headers, **call.headers})  # tritonclient adds its own to them
        return {"headers": headers, "client_timeout": call.left()}

    @contextlib.contextmanager
    def _connected(self, model: str) -> Iterator[Any]:
        client = self._client = self._client or self._connect()
        try:
            yield client
        except Exception as error:
            # options._GRPC_OPTIONS says why. The client is not closed, because other calls may still use it.
            if self._client is client and isinstance(map_error(error, self._url, model), ServerUnreachableError):
                self._client = None
            raise

    def _connect(self) -> Any:
        return tritonclient.grpc.aio.InferenceServerClient(
            self._url.address,
            ssl=self._url.is_secure,
            root_certificates=self._ca_certs,
            channel_args=grpc_options(self._url),
        )


class _Inputs:
    """Converts arrays to tritonclient's inputs. Embeddings are copied once for all requests that carry them."""

    def __init__(self) -> None:
        self._large: dict[int, tuple[weakref.ref[npt.NDArray[Any]], Any]] = {}

    def get(self, name: str, array: npt.NDArray[Any]) -> Any:
        if array.nbytes < LARGE:
            return infer_input(name, array)
        key = id(array)
        reference, tensor = self._large.get(key, (None, None))
        if reference is None or reference() is not array:
            tensor = infer_input(name, array)
            self._large[key] = weakref.ref(array, lambda _: self._large.pop(key, None)), tensor
        return tensor
