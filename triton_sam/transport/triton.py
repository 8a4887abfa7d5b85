"""The only module that talks to tritonclient: URL -> client, named arrays in and out, errors mapped in one table."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import queue
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from ..errors import (
    InferenceError,
    ModelNotReadyError,
    SamError,
    ServerBusyError,
    ServerError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from ..wire.contract import QUEUE_IS_FULL
from .base import Tensors
from .connections import Connections, SharedClient, ThreadClients
from .options import certificates, check_times, grpc_options, request_headers
from .retry import Attempts
from .url import ServerUrl

_PROCESS_IS_GONE = "is not healthy"  # the Python backend's "Stub process 'sam2_decoder_0_0' is not healthy."

Result = TypeVar("Result")

CONNECT_TIMEOUT = 10.0
GRPC_GRACE = 0.25
"""Seconds beyond its deadline after which a call is given up."""


def map_error(error: BaseException, url: ServerUrl, model: str | None = None) -> SamError | None:
    """Turn what tritonclient and the layers below it raise into one of our errors; None for what is none of theirs."""
    if isinstance(error, SamError):
        return error
    if isinstance(error, InferenceServerException):
        return _map_status(error, url, model)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):  # two types before Python 3.11
        return ServerTimeoutError(f"no answer from {url} in time")
    if isinstance(error, ssl.SSLError):
        return ServerUnreachableError(f"TLS to {url} failed: {getattr(error, 'reason', None) or error}")
    if isinstance(error, OSError):
        return _nothing_answers(url, getattr(error, "strerror", None) or error or type(error).__name__)
    # The HTTP libraries' own exceptions share no base but their module; geventhttpclient's parser says "_parser".
    if type(error).__module__.startswith(("geventhttpclient", "_parser", "aiohttp")):
        return ServerUnreachableError(f"the connection to {url} broke inside an answer ({type(error).__name__})")
    if isinstance(error, ValueError):  # a JSON parser's error, of a library that tritonclient chooses
        return InferenceError(f"{url} does not answer like a Triton server: {error}")
    return None


def _nothing_answers(url: ServerUrl, reason: object) -> ServerUnreachableError:
    return ServerUnreachableError(
        f"nothing answers at {url} ({reason}): start a server with `triton-sam serve` or `docker compose up`, or give "
        "the URL of a running one"
    )


def _error_of_model(model: str, url: ServerUrl, message: str) -> SamError | None:
    if _says_not_ready(message):
        return ModelNotReadyError(
            f"{url} has no model {model!r} ready: see `triton-sam models --url {url}` for what it has ({message})"
        )
    if _PROCESS_IS_GONE in message:
        return InferenceError(
            f"{model} failed: its process on the server is gone, for want of memory perhaps, and Triton does not start "
            f"another: start the server again ({message})"
        )
    return None


def _map_status(error: InferenceServerException, url: ServerUrl, model: str | None) -> SamError:
    message = " ".join(str(error.message() or "").split())
    status = str(error.status() or "").removeprefix("StatusCode.")
    if status == "DEADLINE_EXCEEDED" or "timeout expired" in message.lower():
        return ServerTimeoutError(f"no answer from {url} in time")
    known = None if model is None else _error_of_model(model, url, message)
    if known is not None:
        return known
    if "BUSY: " in message:
        return ServerBusyError(f"{url} is busy: {message.partition('BUSY: ')[2]}")
    if QUEUE_IS_FULL in message:
        return ServerBusyError(f"{url} is busy: {message}")
    if "explicit model load" in message:
        return InferenceError(
            f"{url} takes no requests to load models: start it with `triton-sam serve --admin`, or tritonserver with "
            "--model-control-mode=explicit"
        )
    is_foreign = "while decoding the response" in message  # a page of a proxy instead of Triton's JSON
    words = f"HTTP status {status}" if is_foreign else message
    if status in ("UNAVAILABLE", "CANCELLED", "502", "503", "504"):
        return _unavailable(url, words)
    if status in ("UNAUTHENTICATED", "PERMISSION_DENIED", "401", "403"):
        return InferenceError(f"{url} refuses access: {words}")
    if status in ("RESOURCE_EXHAUSTED", "413"):
        return InferenceError(f"{url} takes no request of that size: {words}")
    if is_foreign:
        return InferenceError(f"{url} does not answer like a Triton server ({words})")
    return InferenceError(f"{url} refused the request: {message}" if model is None else f"{model} failed: {message}")


def _says_not_ready(message: str) -> bool:
    """Whether a model is missing: Triton's status for it differs between versions and protocols, its words do not."""
    return bool(re.search(r"unknown model|model .*not found|no available version|not (at )?ready( state)?", message))


def _unavailable(url: ServerUrl, words: str) -> ServerUnreachableError:
    """Tell gRPC's words for no server at all, or no such host, from all others: one with which TLS fails is there."""
    said = words.lower()
    if re.search("failed to connect to all|errors resolving|(dns|name) resolution", said) and "handshake" not in said:
        return _nothing_answers(url, words.rpartition(": ")[2].rstrip("]"))
    return ServerUnreachableError(f"{url} is not available: {words}")


class Transport:
    """Calls one Triton server, from any number of threads.

    tritonclient's HTTP client belongs to the thread that made it, so each thread gets its own, made at its first call
    and closed after the thread's end; the gRPC client is shared.

    Args:
        url: parsed URL.
        timeout: seconds that one call may take, repetitions and the pauses before them included.
        retries: how often a call is repeated when the connection could not be made or broke, as long as its timeout
            allows. Only calls without side effects on the server are; a timeout is never repeated.
        headers: sent with every call, for example ``{"Authorization": "Bearer ..."}``.
        ca_certs: PEM file with the certificates to trust, for https and grpcs; None for the system's.

    Raises:
        ConfigurationError: an argument that cannot work.
    """

    def __init__(
        self,
        url: ServerUrl,
        *,
        timeout: float = 60.0,
        retries: int = 2,
        headers: Mapping[str, str] | None = None,
        ca_certs: str | os.PathLike[str] | None = None,
    ) -> None:
        check_times(timeout, retries)
        self.url = url
        self._timeout = timeout
        self._retries = retries
        self._headers = request_headers(url, headers)
        self._module: ModuleType = _protocol(url)
        connect = partial(_connect, self._module, url, timeout, certificates(ca_certs))
        self._connections: Connections = SharedClient(connect) if url.is_grpc else ThreadClients(connect)
        self._ends = threading.local()

    @contextlib.contextmanager
    def one_call(self) -> Iterator[None]:
        """Let all that this thread asks for inside the block share one timeout: to the user it is one call."""
        if getattr(self._ends, "end", None) is not None:
            yield
            return
        self._ends.end = time.monotonic() + self._timeout
        try:
            yield
        finally:
            self._ends.end = None

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Run one inference.

        Args:
            model: Triton model name; the newest version answers.
            inputs: arrays by tensor name.
            outputs: names of the outputs to send back.

        Raises:
            ServerError: see triton_sam.errors.
        """
        wanted = [self._module.InferRequestedOutput(name) for name in outputs]
        given = [self._input(name, array) for name, array in inputs.items()]

        def call(client: Any) -> dict[str, npt.NDArray[Any]]:
            infer = partial(self._infer_in_time, client) if self.url.is_grpc else client.infer
            return read_outputs(infer(model, given, outputs=wanted, **self._metadata()), model, outputs)

        return self._call(call, model)

    def is_ready(self) -> bool:
        """Whether the server answers and says it is ready."""
        try:
            return bool(self._call(lambda client: client.is_server_ready(**self._metadata()), None, retries=0))
        except ServerError:
            return False

    def ready_models(self) -> dict[str, str]:
        """Return name -> version of every READY model, from the repository index (Triton has no list at /v2/models)."""
        entries = self._index()
        return {entry["name"]: entry.get("version", "") for entry in entries if entry.get("state") == "READY"}

    def known_models(self) -> set[str]:
        """Return the names of all models in the server's repository, loaded or not."""
        return {entry["name"] for entry in self._index()}

    def load_model(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Let the server load a model, or load it again when its files have changed; the old one serves meanwhile.

        Args:
            model: name of its folder.
            config: the configuration to load it with, as the JSON of the HTTP protocol, instead of config.pbtxt.

        Raises:
            ServerError: it does not load (what was loaded before stays), or the server takes no such requests.
        """
        text = None if config is None else json.dumps(config)
        self._call(lambda client: client.load_model(model, config=text, **self._metadata()), None, retries=0)

    def _index(self) -> list[dict[str, str]]:
        index = self._call(lambda client: client.get_model_repository_index(**self._metadata()), None)
        return index if isinstance(index, list) else [_index_entry(model) for model in index.models]

    def server_version(self) -> str:
        """Version of the Triton server, for example ``2.51.0``."""
        answer = self._call(lambda client: client.get_server_metadata(**self._metadata()), None)
        return str(answer["version"] if isinstance(answer, dict) else answer.version)

    def model_config(self, model: str) -> dict[str, Any]:
        """Return the configuration that the server runs a model with, as the JSON of the HTTP protocol."""
        if not self.url.is_grpc:
            return dict(self._call(lambda client: client.get_model_config(model, **self._metadata()), model))
        answer = self._call(lambda client: client.get_model_config(model, as_json=True, **self._metadata()), model)
        return dict(answer["config"])

    def statistics(self, model: str) -> dict[str, Any]:
        """Return Triton's statistics of one model: counts and nanoseconds, as the JSON of the HTTP protocol."""
        extra = {"as_json": True} if self.url.is_grpc else {}
        answer = self._call(lambda client: client.get_inference_statistics(model, **extra, **self._metadata()), model)
        return dict(answer["model_stats"][0])

    def close(self) -> None:
        """Close all connections. Later calls raise."""
        self._connections.close()

    def _input(self, name: str, array: npt.NDArray[Any]) -> Any:
        return infer_input(self._module, name, array)

    def _call(self, call: Callable[[Any], Result], model: str | None, retries: int | None = None) -> Result:
        with self.one_call():
            return self._call_until(self._ends.end, call, model, self._retries if retries is None else retries)

    def _call_until(self, end: float, call: Callable[[Any], Result], model: str | None, retries: int) -> Result:
        attempts = Attempts(retries)
        while True:
            client = None
            try:
                client = self._connections.get()
                with self._deadline(end):
                    return call(client)
            # Also Ctrl-C: an HTTP client has half a request on its connection.
            except BaseException as error:  # noqa: BLE001 - pause_after() raises it again
                mapped = map_error(error, self.url, model)
                if not self.url.is_grpc or isinstance(mapped, ServerUnreachableError):
                    self._connections.drop(client)
                pause = attempts.pause_after(error, mapped, end - time.monotonic())
            time.sleep(pause)

    def _infer_in_time(self, client: Any, *arguments: Any, client_timeout: float, **options: Any) -> Any:
        """client.infer(), ended at its timeout: gRPC (1.85) once waited minutes for a server that stopped reading."""
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def keep(result: Any, error: Exception | None) -> None:
            answers.put((result, error))

        running = client.async_infer(*arguments, keep, client_timeout=client_timeout, **options)
        try:
            result, error = answers.get(timeout=client_timeout + GRPC_GRACE)
        except queue.Empty:
            self._connections.drop(client)
            raise ServerTimeoutError(f"no answer from {self.url} in time") from None
        finally:
            running.cancel()  # of no effect on a call that has ended
        if error is not None:
            raise error
        return result

    def _deadline(self, end: float) -> contextlib.AbstractContextManager[Any]:
        """End a call at its timeout; gRPC does so by itself, but for what `_infer_in_time` is there."""
        if self.url.is_grpc:
            return contextlib.nullcontext()
        # The HTTP client's own timeout starts anew with every byte. Its sockets are gevent's, hence gevent's clock.
        import gevent

        late = ServerTimeoutError(f"no answer from {self.url} in time")
        return gevent.Timeout(max(0.0, end - time.monotonic()), late)  # type: ignore[no-any-return]

    def _metadata(self) -> dict[str, Any]:
        options: dict[str, Any] = {"headers": dict(self._headers) or None}
        if self.url.is_grpc:
            options["client_timeout"] = max(0.0, self._ends.end - time.monotonic())
        return options


def _protocol(url: ServerUrl) -> ModuleType:
    """Import only the protocol that is asked for: each costs a noticeable part of a start-up."""
    return importlib.import_module("tritonclient.grpc" if url.is_grpc else "tritonclient.http")


def _connect(module: ModuleType, url: ServerUrl, timeout: float, ca_certs: str | None) -> Any:
    """Make a client of tritonclient."""
    if url.is_grpc:
        return module.InferenceServerClient(
            url.address, ssl=url.is_secure, root_certificates=ca_certs, channel_args=grpc_options(url)
        )
    client = module.InferenceServerClient(
        url.address,
        ssl=url.is_secure,
        ssl_context_factory=partial(_ssl_context, ca_certs) if url.is_secure else None,
        connection_timeout=min(CONNECT_TIMEOUT, timeout),
        network_timeout=timeout,
    )
    # Up to 2.5, geventhttpclient sends what met a broken connection again, up to `size` + 1 times, orders too. It reads
    # `size` for nothing else. Only here is it known what may be repeated, and how often.
    with contextlib.suppress(AttributeError):
        client._client_stub._connection_pool.size = -1  # noqa: SLF001
    return client


def _ssl_context(ca_certs: str | None, **_: Any) -> Any:
    # gevent's context, since tritonclient's HTTP client runs on gevent sockets.
    import gevent.ssl

    return gevent.ssl.create_default_context(cafile=ca_certs)


def infer_input(module: ModuleType, name: str, array: npt.NDArray[Any]) -> Any:
    """Copy an array into tritonclient's form of an input; ``module`` is its package for the protocol."""
    tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(np.ascontiguousarray(array))
    return tensor


def read_outputs(answer: Any, model: str, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Take the arrays out of tritonclient's answer.

    Raises:
        InferenceError: one is missing.
    """
    arrays = {name: answer.as_numpy(name) for name in outputs}
    missing = [name for name, array in arrays.items() if array is None]
    if missing:
        raise InferenceError(f"{model} sent no output {missing[0]!r}")
    return arrays


def _index_entry(model: Any) -> dict[str, str]:
    return {"name": model.name, "version": model.version, "state": model.state}
