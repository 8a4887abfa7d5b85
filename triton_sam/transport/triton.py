"""The transport of all clients. It adds one timeout per call, retries, and the errors of this package."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt

from .._common import strict_json
from .._common.tracing import span
from ..errors import InferenceError, ServerError, ServerUnreachableError
from .base import Tensors
from .failures import Attempts, map_error
from .options import Busy, certificates, check_headers, check_times, waits_if_busy
from .threads import ended_by, pause
from .timed_sockets import Call
from .url import ServerUrl

if TYPE_CHECKING:
    from .grpc_client import GrpcClient
    from .kserve import KServeClient

Result = TypeVar("Result")


class Transport:
    """Calls one Triton server, from any number of threads, over HTTP or gRPC.

    Args:
        url: parsed URL.
        timeout: seconds that one call may take, including its retries and the pauses before them.
        retries: maximum number of retries within the timeout if the connection cannot be made or breaks. If the model
            has answered before, calls that find no server are retried for 30 s, because the server may be restarting.
            A call whose answer lacks an output is retried once. Calls that load models, and calls that reached the
            timeout, are never retried.
        headers: sent with every call, for example ``{"Authorization": "Bearer ..."}``.
        ca_certs: PEM file with the certificates to trust, for https and grpcs; None for the system's.
        busy: what to do when the server rejects a call because its queue is full. "raise" a ServerBusyError at once,
            or "wait": retry, with pauses that grow to a second, until the timeout.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        url: ServerUrl,
        *,
        timeout: float = 60.0,
        retries: int = 2,
        headers: Mapping[str, str] | None = None,
        ca_certs: str | os.PathLike[str] | None = None,
        busy: Busy = "raise",
    ) -> None:
        check_times(timeout, retries)
        check_headers(headers)
        self.url = url
        self._timeout = timeout
        self._retries = retries
        self._waits_if_busy = waits_if_busy(busy)
        self._client = _connect(url, headers, certificates(ca_certs))
        self._ends = threading.local()
        self._answered: set[str | None] = set()

    @contextlib.contextmanager
    def one_call(self) -> Iterator[None]:
        """Let all requests of this thread inside the block share one timeout, since the user sees them as one call."""
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
        end = time.monotonic() + self._timeout
        with span(f"infer {model}", {"triton_sam.model": model}, is_request=True) as headers:
            ask = partial(self._client.infer, model, inputs, outputs)
            for _ in range(1 + min(self._retries, 1)):  # under load, Triton 24.10 leaves out an output now and then
                arrays = self._call(ask, model, headers=headers, end=end)
                missing = [name for name in outputs if name not in arrays]
                if not missing:
                    return arrays
        raise InferenceError(f"{model} sent no output {missing[0]!r}")

    def is_ready(self) -> bool:
        """Return whether the server answers and reports that it is ready."""
        try:
            return self._call(self._client.is_ready, None, retries=0)
        except ServerError:
            return False

    def check_ready(self) -> None:
        """Raise the reason if the server is not ready.

        Raises:
            ServerError: nothing answers, TLS fails, access is refused, the server is not Triton, or it is not ready.
        """
        if self._call(self._client.is_ready, None, retries=0):
            return
        self.ready_models()  # this raises the error of a proxy or of another program
        raise ServerUnreachableError(f"{self.url} is not ready: it is starting or stopping, or a model failed to load")

    def ready_models(self) -> dict[str, str]:
        """Return name -> version of every READY model, from the repository index (Triton has no list at /v2/models)."""
        entries = self._call(self._client.index, None)
        return {entry["name"]: entry.get("version", "") for entry in entries if entry.get("state") == "READY"}

    def known_models(self) -> set[str]:
        """Return the names of all models in the server's repository, loaded or not."""
        return {entry["name"] for entry in self._call(self._client.index, None)}

    def load_model(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Make the server load a model, or reload it after its files changed. Meanwhile the old model stays in use.

        Args:
            model: name of the model, which is the name of its folder.
            config: configuration that replaces the config.pbtxt, as the JSON of the HTTP protocol; None: the file.

        Raises:
            ServerError: the model does not load (an earlier version stays loaded), or the server does not accept
                requests to load models.
        """
        text = None if config is None else strict_json.dumps(config)
        self._call(lambda call: self._client.load_model(model, text, call), None, retries=0)

    def server_version(self) -> str:
        """Return the version of the Triton server, for example ``2.51.0``."""
        return self._call(self._client.version, None)

    def model_config(self, model: str) -> dict[str, Any]:
        """Return the configuration with which the server runs a model, as the JSON of the HTTP protocol."""
        return self._call(lambda call: self._client.model_config(model, call), model)

    def statistics(self, model: str) -> dict[str, Any]:
        """Return Triton's statistics of one model: counts and nanoseconds, as the JSON of the HTTP protocol."""
        return self._call(lambda call: self._client.statistics(model, call), model)

    def close(self) -> None:
        """Close all connections. Later calls raise a ConfigurationError."""
        self._client.close()

    def _call(
        self,
        ask: Callable[[Call], Result],
        model: str | None,
        retries: int | None = None,
        headers: Mapping[str, str] | None = None,
        end: float | None = None,
    ) -> Result:
        end = getattr(self._ends, "end", None) or end or time.monotonic() + self._timeout
        attempts: Attempts | None = None
        while True:
            call = Call(end, headers)
            try:
                with ended_by(call.cancel):
                    answer = ask(call)
                self._answered.add(model)
                return answer
            except Exception as error:  # noqa: BLE001 - pause_after() raises it again
                attempts = attempts or Attempts(
                    self._retries if retries is None else retries,
                    has_answered=model in self._answered,
                    waits_if_busy=self._waits_if_busy,
                )
                seconds = attempts.pause_after(error, map_error(error, self.url, model), end - time.monotonic())
            pause(seconds)


def _connect(url: ServerUrl, headers: Mapping[str, str] | None, ca_certs: str | None) -> KServeClient | GrpcClient:
    """Connect by the protocol of the URL. Import only that one, because each import slows the start noticeably."""
    if url.is_grpc:
        from .grpc_client import GrpcClient

        return GrpcClient(url, headers=headers, ca_certs=ca_certs)
    from .kserve import KServeClient

    return KServeClient(url, headers=headers, ca_certs=ca_certs)
