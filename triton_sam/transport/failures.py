"""Converts errors of tritonclient, urllib3 and the system to ours, and decides whether to retry a failed call."""

from __future__ import annotations

import math
import re
import ssl
import time
from http.client import BadStatusLine, RemoteDisconnected

from tritonclient.utils import InferenceServerException

from .._common.backoff import spread
from ..errors import (
    InferenceError,
    ModelNotReadyError,
    SamError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from ..families.tables import GUARD_PREFIX
from ..wire import triton_texts
from ..wire.contract import INTERNAL, has_code, read_error
from .url import ServerUrl

ADVICE = "give Triton's port of HTTP (8000) or gRPC (8001)"
"""The end of an error about a wrong port; commands add no further hint to it."""
START_ADVICE = ": start a server with `triton-sam serve` or `docker compose up`, or give the URL of a running one"
"""The end of an error about a server that does not answer; commands that give other advice remove it."""
REFUSES_ACCESS = "refuses access"
NOT_AVAILABLE = "is not available"
"""Parts of messages by which `doctor` chooses its advice."""
_START_WITH_ADMIN = "start it with `triton-sam serve --admin`, or its container with TRITON_SAM_ADMIN=1"
RETRY_PAUSE = 0.2
"""Seconds before the first retry of a call. The pause doubles with each further retry."""
MAX_PAUSE = 1.0
PAUSE_FOR_DEAD_PROCESS = 3.0
"""Seconds before the first retry after the process of a model has ended; the next pause is four times as long.

Its supervisor takes one to two seconds to detect this, and longer on a busy machine."""
RESTART_SECONDS = 30.0
"""Seconds that a call waits for a server that restarts. The timeout of the call may be shorter."""


class ForeignAnswerError(Exception):
    """An answer with an error status whose body is not Triton's JSON, for example the HTML page of a proxy.

    Args:
        status: HTTP status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status}, and the body is not Triton's JSON")
        self.status = str(status)


def map_error(error: BaseException, url: ServerUrl, model: str | None = None) -> SamError | None:
    """Convert an error of tritonclient or of a layer below it; return None for an error from anywhere else."""
    if isinstance(error, SamError):
        return error
    if isinstance(error, InferenceServerException):
        return _map_status(error, url, model)
    if isinstance(error, ForeignAnswerError):
        return _of_status(error.status, url, f"HTTP status {error.status}") or _no_triton(url, error.status)
    if isinstance(error, TimeoutError):
        return ServerTimeoutError(f"no answer from {url} in time")
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
        return _tls_failed(url, reason)
    if isinstance(error, OSError):
        return _nothing_answers(url, error.strerror or str(error) or type(error).__name__)
    if _is_no_http(error):
        return ServerUnreachableError(f"{url} does not answer in HTTP: {ADVICE}, and write grpc:// before the latter")
    if type(error).__module__.startswith("urllib3"):  # imported only with HTTP
        return ServerUnreachableError(
            f"the connection to {url} broke before the answer was complete: the server or a proxy has ended; try again"
        )
    if isinstance(error, ValueError):  # the body is not JSON, or not JSON of this protocol
        return InferenceError(f"{url} does not answer like a Triton server: {ADVICE}")
    return None


def _is_no_http(error: BaseException) -> bool:
    """Return whether the answer was not HTTP; False if the peer closed the connection without an answer."""
    return any(isinstance(each, BadStatusLine) and not isinstance(each, RemoteDisconnected) for each in error.args)


def cannot_have_run(error: BaseException, meant: SamError) -> bool:
    """Return whether a failed request never reached a model, so that it cannot have caused the failure.

    Args:
        error: the error of tritonclient or of a layer below it.
        meant: the same error converted by map_error().
    """
    if isinstance(meant, ModelNotReadyError):  # a server that shuts down briefly reports that its models are not ready
        return True
    if not isinstance(meant, ServerUnreachableError):
        return False
    if isinstance(error, InferenceServerException):
        message = str(error.message() or "")
        return bool(triton_texts.NOT_CONNECTED.search(message) or triton_texts.SERVER_ENDS.search(message))
    return type(error.__cause__).__name__ == "NewConnectionError"  # of urllib3, which is imported late


def _nothing_answers(url: ServerUrl, reason: object) -> ServerUnreachableError:
    return ServerUnreachableError(f"nothing answers at {url} ({reason}){START_ADVICE}")


def _tls_failed(url: ServerUrl, reason: str) -> ServerUnreachableError:
    advice = ""
    if "expired" in reason:
        advice = ": renew the server's certificate, with deploy/nginx/make_certificates.sh if that created it"
    elif "issuer" in reason or "self-signed" in reason or "self signed" in reason:
        advice = ": pass the certificate of its authority, `ca_certs` in Python or --ca-certs"
    elif "mismatch" in reason or "Hostname" in reason:
        advice = ": use a name of the server's certificate, or create one for this name"
    return ServerUnreachableError(f"TLS to {url} failed: {reason.rstrip('.')}{advice}")


def _error_of_model(model: str | None, url: ServerUrl, message: str) -> SamError | None:
    if model is None:
        return None
    if triton_texts.NOT_READY.search(message):
        return ModelNotReadyError(
            f"{url} has no model {model!r} ready: `triton-sam models --url {url}` lists its models, `triton-sam setup` "
            f"exports others ({message})"
        )
    if triton_texts.PROCESS_IS_GONE.search(message):
        return ServerUnreachableError(
            f"{model} cannot answer: its process on {url} is gone, perhaps for lack of memory. `triton-sam serve` and "
            f"the container restart Triton automatically; restart any other server ({message})"
        )
    if f"Name:'{GUARD_PREFIX}" in message:
        limit = re.search(f"Name:'{GUARD_PREFIX}(a request may have at most [^']*)'", message)
        reason = limit[1] if limit else "the sizes of the inputs do not fit each other or the model"
        return InferenceError(f"{model} refused the request: {reason} ({message})")
    return None


def _map_status(error: InferenceServerException, url: ServerUrl, model: str | None) -> SamError:
    message = " ".join(str(error.message() or "").split())
    status = str(error.status() or "").removeprefix("StatusCode.")
    if status == "DEADLINE_EXCEEDED" or triton_texts.DEADLINE.search(message):
        return ServerTimeoutError(f"no answer from {url} in time")
    if model is not None and has_code(message):
        failed = InferenceError(f"{model} failed: {message}")
        if message.startswith(f"{INTERNAL}: "):  # Triton's message about a model that this one called
            return _error_of_model(model, url, message) or failed
        meant = read_error(failed)  # the flows of the clients convert other codes
        return ServerBusyError(f"{url} is busy: {meant}") if isinstance(meant, ServerBusyError) else failed
    if (known := _error_of_model(model, url, message)) is not None:
        return known
    if triton_texts.QUEUE_IS_FULL.search(message):
        return ServerBusyError(f"{url} is busy: {message}")
    if refusal := _refused_order(url, message):
        return InferenceError(refusal)
    if (known := _of_status(status, url, message)) is not None:
        return known
    return InferenceError(f"{url} refused the request: {message}" if model is None else f"{model} failed: {message}")


def _of_status(status: str, url: ServerUrl, words: str) -> SamError | None:
    """Return the error for an unambiguous status; None for other statuses."""
    if status in ("UNAVAILABLE", "CANCELLED", "502", "503", "504"):
        return _unavailable(url, words)
    if status in ("UNAUTHENTICATED", "PERMISSION_DENIED", "401", "403"):
        return InferenceError(f"{url} {REFUSES_ACCESS}: {words}")
    if status in ("RESOURCE_EXHAUSTED", "413"):
        return InferenceError(f"{url} takes no request of that size: {words}")
    if status == "404" and words == "Not Found":  # of a path, not of a model
        return _no_triton(url, status)
    return None


def _no_triton(url: ServerUrl, status: str) -> InferenceError:
    text = f"{url} does not answer like a Triton server (HTTP status {status})"
    if status == "405":  # the metrics port does not accept POST
        text += f": {ADVICE}, not that of metrics (8002)"
    elif url.path:
        text += f": leave the path {url.path} out, unless a proxy in front of Triton adds it"
    return InferenceError(text)


def _refused_order(url: ServerUrl, message: str) -> str:
    """Return the text for a request that a server accepts only with administration; empty for other messages."""
    if triton_texts.LOADS_NO_MODELS.search(message):
        return (
            f"{url} takes no requests to load models: run `triton-sam reload` on its machine or inside its container, "
            f"or {_START_WITH_ADMIN}"
        )
    if triton_texts.RESTRICTED.search(message):
        return (
            f"{url} accepts no administration, which sharing memory, traces and logging need: {_START_WITH_ADMIN} "
            f"({message})"
        )
    return ""


def _unavailable(url: ServerUrl, words: str) -> ServerUnreachableError:
    """Return the error for gRPC's message: there is no server, or it fails, for example in TLS."""
    if untrusted := triton_texts.UNTRUSTED_CERTIFICATE.search(words):
        return _tls_failed(url, untrusted[1])
    if triton_texts.NOT_CONNECTED.search(words) and "handshake" not in words.lower():
        return _nothing_answers(url, words.rpartition(": ")[2].rstrip("]"))
    return ServerUnreachableError(f"{url} {NOT_AVAILABLE}: {words}")


class Attempts:
    """Counts the attempts of one call.

    A call is retried only if the connection could not be made or broke, or if the process of the model has ended. A
    server that rejected a request would reject it again, and after a timeout no time is left.

    A server that has answered before may be restarting: its supervisor restarts it when a model crashes. Calls that
    find no server are therefore retried for `RESTART_SECONDS`, any number of times. A call that may have run is retried
    at most `retries` times: it may have crashed the model, and would crash it again.

    A busy server rejects calls at once. They are retried until their deadline if the caller chose to wait.

    Args:
        retries: maximum number of attempts after the first one; 0: never retry.
        has_answered: whether the server has answered before, for this model.
    """

    def __init__(self, retries: int, *, has_answered: bool = False, waits_if_busy: bool = False) -> None:
        self._left = retries
        self._pause = RETRY_PAUSE
        self._pause_for_dead_process = PAUSE_FOR_DEAD_PROCESS
        self._may_wait = has_answered and retries > 0
        self._patient_until: float | None = None
        self._waits_if_busy = waits_if_busy

    def pause_after(self, error: BaseException, meant: SamError | None, seconds_left: float = math.inf) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            error: the error that ended the last attempt.
            meant: the same error converted by map_error(); None if it cannot be converted, as for Ctrl-C.
            seconds_left: seconds until the deadline of the call.

        Raises:
            BaseException: no further attempt is allowed. The error is ``meant``, or ``error`` if ``meant`` is None.
        """
        if meant is None:
            raise error
        if self._patient_until is None:
            self._patient_until = time.monotonic() + RESTART_SECONDS
        is_patient = self._may_wait and time.monotonic() < self._patient_until and cannot_have_run(error, meant)
        is_patient = is_patient or (self._waits_if_busy and isinstance(meant, ServerBusyError))
        may_repeat = isinstance(meant, ServerUnreachableError) and self._left > 0
        pause = spread(self._pause) if is_patient or may_repeat else math.inf
        if may_repeat and self._may_wait and triton_texts.PROCESS_IS_GONE.search(str(error)):
            pause = max(pause, spread(self._pause_for_dead_process))
            self._pause_for_dead_process *= 4
        if pause >= seconds_left:
            raise meant from (None if meant is error else error)
        self._left -= not is_patient
        self._pause = min(2 * self._pause, MAX_PAUSE)
        return pause
