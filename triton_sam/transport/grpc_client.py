"""Triton's gRPC protocol, through tritonclient."""

from __future__ import annotations

import contextlib
import os
import queue
import ssl
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc
from tritonclient.utils import np_to_triton_dtype

from ..errors import ConfigurationError, ServerUnreachableError
from .base import Tensors
from .failures import map_error
from .options import CLOSED, GRPC_GRACE, grpc_options
from .timed_sockets import Call
from .url import ServerUrl

LARGE = 1 << 20
"""Inputs of at least this many bytes, which are embeddings, are kept in serialized form for later requests."""


class GrpcClient:
    """Calls one server over gRPC, from any number of threads. The methods are those of KServeClient.

    All threads share one channel, which the first call opens. A failed channel is replaced, for the reason given at
    options._GRPC_OPTIONS; it closes itself after its last call.
    """

    def __init__(
        self, url: ServerUrl, *, headers: Mapping[str, str] | None = None, ca_certs: str | None = None
    ) -> None:
        self._url = url
        self._headers = dict(headers or {})
        self._ca_certs = ca_certs or (_system_certificates() if url.is_secure else None)
        self._shared: Any = None
        self._closed = False
        self._lock = threading.Lock()
        self._beginning = threading.Lock()
        self._inputs = _Inputs()

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str], call: Call) -> dict[str, npt.NDArray[Any]]:
        given = [self._inputs.get(name, array) for name, array in inputs.items()]
        wanted = [tritonclient.grpc.InferRequestedOutput(name) for name in outputs]
        with self._client(call, model) as client:
            answer = self._infer_in_time(client, model, given, wanted, call)
        arrays = {name: answer.as_numpy(name) for name in outputs}
        return {name: array for name, array in arrays.items() if array is not None}

    def is_ready(self, call: Call) -> bool:
        with self._client(call) as client:
            return bool(client.is_server_ready(**self._options(call)))

    def version(self, call: Call) -> str:
        with self._client(call) as client:
            return str(client.get_server_metadata(**self._options(call)).version)

    def index(self, call: Call) -> list[dict[str, str]]:
        with self._client(call) as client:
            models = client.get_model_repository_index(**self._options(call)).models
        return [{"name": model.name, "version": model.version, "state": model.state} for model in models]

    def load_model(self, model: str, config: str | None, call: Call) -> None:
        with self._client(call) as client:
            client.load_model(model, config=config, **self._options(call))

    def model_config(self, model: str, call: Call) -> dict[str, Any]:
        with self._client(call, model) as client:
            return dict(client.get_model_config(model, as_json=True, **self._options(call))["config"])

    def statistics(self, model: str, call: Call) -> dict[str, Any]:
        with self._client(call, model) as client:
            answer = client.get_inference_statistics(model, as_json=True, **self._options(call))
        return dict(answer["model_stats"][0])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client, self._shared = self._shared, None
        if client is not None:
            with contextlib.suppress(Exception):  # closing a broken channel may fail; it is not used again in any case
                client.close()

    @contextlib.contextmanager
    def _client(self, call: Call, model: str | None = None) -> Iterator[Any]:
        with self._lock:
            if self._closed:
                raise ConfigurationError(CLOSED)
            if self._shared is None:
                self._shared = tritonclient.grpc.InferenceServerClient(
                    self._url.address,
                    ssl=self._url.is_secure,
                    root_certificates=self._ca_certs,
                    channel_args=grpc_options(self._url),
                )
            client = self._shared
        try:
            yield client
        except Exception as error:
            if not call.is_cancelled and isinstance(map_error(error, self._url, model), ServerUnreachableError):
                self._drop(client)
            raise

    def _drop(self, failed: Any) -> None:
        with self._lock:
            if self._shared is failed:
                self._shared = None

    def _options(self, call: Call) -> dict[str, Any]:
        headers = {name.lower(): value for name, value in {**self._headers, **call.headers}.items()}  # gRPC requires it
        return {"headers": headers or None, "client_timeout": call.left()}

    def _infer_in_time(self, client: Any, model: str, given: list[Any], wanted: list[Any], call: Call) -> Any:
        """Run an inference that ends at its timeout even if gRPC does not.

        gRPC 1.85 waited for minutes on a server that did not read the request.
        """
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def keep(result: Any, error: Exception | None) -> None:
            answers.put((result, error))

        options = self._options(call)
        # tritonclient keeps the running call in an attribute, and adds the callback to the call in that attribute: if
        # two threads began at the same time, one of them received the answer of the other.
        with self._beginning:
            running = client.async_infer(model, given, keep, outputs=wanted, **options)
        call.end_request = running.cancel
        try:
            call.left()  # it may have been cancelled while it began
            result, error = answers.get(timeout=options["client_timeout"] + GRPC_GRACE)
        except queue.Empty:
            self._drop(client)
            raise TimeoutError("gRPC did not keep its deadline") from None
        finally:
            running.cancel()  # of no effect on a call that has ended
        if error is not None:
            raise error
        return result


def infer_input(name: str, array: npt.NDArray[Any]) -> Any:
    """Copy an array into tritonclient's form of an input."""
    given = tritonclient.grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(np.ascontiguousarray(array))
    return given


def _system_certificates() -> str | None:
    """Return the file of the system's certificates, unless gRPC's own variable names another; None without one."""
    return None if "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" in os.environ else ssl.get_default_verify_paths().cafile


class _Inputs:
    """Converts arrays to tritonclient's inputs. Embeddings are copied once for all requests that carry them.

    Embeddings come from an answer and are read-only. An array that its owner may change is copied each time.
    """

    def __init__(self) -> None:
        self._large: dict[tuple[int, str], tuple[weakref.ref[npt.NDArray[Any]], Any]] = {}

    def get(self, name: str, array: npt.NDArray[Any]) -> Any:
        if array.nbytes < LARGE or array.flags.writeable:
            return infer_input(name, array)
        key = id(array), name
        reference, tensor = self._large.get(key, (None, None))
        if reference is None or reference() is not array:
            tensor = infer_input(name, array)
            self._large[key] = weakref.ref(array, lambda _: self._large.pop(key, None)), tensor
        return tensor
