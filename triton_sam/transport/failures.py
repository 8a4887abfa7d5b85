"""Converts errors of tritonclient, urllib3 and the system to errors of this package, for both protocols."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from http.client import BadStatusLine, RemoteDisconnected
from typing import Any

import numpy.typing as npt
from tritonclient.utils import InferenceServerException

from ..errors import (
    InferenceError,
    ModelNotReadyError,
    SamError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from ..families.tables import GUARD_PREFIX
from ..wire.contract import QUEUE_IS_FULL
from .url import ServerUrl

NO_TRITON = "while decoding the response"
"""This text marks an error whose body is not Triton's JSON, for example the HTML page of a proxy."""
ADVICE = "give Triton's port of HTTP (8000) or gRPC (8001)"
"""The end of an error about a port that is none of these; a command adds no other hint to it."""
_PROCESS_IS_GONE = "is not healthy"  # the Python backend's "Stub process 'sam2_decoder_0_0' is not healthy."
_NOT_CONNECTED = "failed to connect to all|errors resolving|(dns|name) resolution"
_RESTRICTED = " is restricted, expecting header"  # "This API ...", and over gRPC "This protocol ..."
_START_WITH_ADMIN = "start it with `triton-sam serve --admin`, or its container with TRITON_SAM_ADMIN=1"
_REFUSED_WHILE_ENDING = "stopped accepting new inference requests"


def map_error(error: BaseException, url: ServerUrl, model: str | None = None) -> SamError | None:
    """Convert an error of tritonclient or of a layer below it; return None for an error from anywhere else."""
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
    if _is_no_http(error):
        return ServerUnreachableError(f"{url} does not speak HTTP: {ADVICE}, and write grpc:// before the latter")
    if type(error).__module__.startswith("urllib3"):  # imported with HTTP alone
        return ServerUnreachableError(
            f"the connection to {url} broke before the answer was complete: the server or a proxy has ended; try again"
        )
    if isinstance(error, ValueError):  # the body is not JSON, or not JSON of this protocol
        return InferenceError(f"{url} does not answer like a Triton server: {ADVICE}")
    return None


@contextlib.contextmanager
def mapped_errors(url: ServerUrl, model: str) -> Iterator[None]:
    """Raise the errors of the block as map_error() converts them; others pass as they are."""
    try:
        yield
    except Exception as error:
        meant = map_error(error, url, model)
        if meant is None:
            raise
        raise meant from (None if meant is error else error)


def _is_no_http(error: BaseException) -> bool:
    """Return whether the answer began with other bytes than those of HTTP; a peer that hangs up sent none."""
    return any(isinstance(each, BadStatusLine) and not isinstance(each, RemoteDisconnected) for each in error.args)


def cannot_have_run(error: BaseException, meant: SamError) -> bool:
    """Return whether a failed request never reached a model, so that it cannot be the reason of the failure.

    Args:
        error: the error of tritonclient or of a layer below it.
        meant: the same error converted by map_error().
    """
    if isinstance(meant, ModelNotReadyError):  # a server that ends says for a moment that its models are not ready
        return True
    if not isinstance(meant, ServerUnreachableError):
        return False
    if isinstance(error, InferenceServerException):
        return bool(re.search(f"{_NOT_CONNECTED}|{_REFUSED_WHILE_ENDING}", str(error.message() or "").lower()))
    made_no_connection = type(error.__cause__).__name__ == "NewConnectionError"  # of urllib3, which is imported late
    return made_no_connection or isinstance(error, (ConnectionRefusedError, socket.gaierror))


def process_is_gone(error: BaseException) -> bool:
    """Return whether Triton answered that the process of a model is gone."""
    return isinstance(error, InferenceServerException) and _PROCESS_IS_GONE in str(error.message() or "")


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
        return ServerUnreachableError(
            f"{model} cannot answer: its process on {url} is gone, perhaps for lack of memory. `triton-sam serve` and "
            f"the container start Triton again by themselves; start any other server again ({message})"
        )
    if f"Name:'{GUARD_PREFIX}" in message:
        return InferenceError(
            f"{model} refused the request: the sizes of the inputs do not fit each other or the model ({message})"
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
    if refusal := _refused_order(url, message):
        return InferenceError(refusal)
    is_foreign = NO_TRITON in message
    words = f"HTTP status {status}" if is_foreign else message
    if status in ("UNAVAILABLE", "CANCELLED", "502", "503", "504"):
        return _unavailable(url, words)
    if status in ("UNAUTHENTICATED", "PERMISSION_DENIED", "401", "403"):
        return InferenceError(f"{url} refuses access: {words}")
    if status in ("RESOURCE_EXHAUSTED", "413"):
        return InferenceError(f"{url} takes no request of that size: {words}")
    if is_foreign or status == "405" or (status == "404" and message == "Not Found"):  # of a path, not of a model
        return _no_triton(url, status)
    return InferenceError(f"{url} refused the request: {message}" if model is None else f"{model} failed: {message}")


def _no_triton(url: ServerUrl, status: str) -> InferenceError:
    text = f"{url} does not answer like a Triton server (HTTP status {status})"
    if status == "405":  # the port of metrics takes no POST
        text += f": {ADVICE}, not that of metrics (8002)"
    elif url.path:
        text += f": leave the path {url.path} out, unless a proxy in front of Triton adds it"
    return InferenceError(text)


def _refused_order(url: ServerUrl, message: str) -> str:
    """Return the text for a request that a server takes only with administration; empty for other messages."""
    if "explicit model load" in message:
        return (
            f"{url} takes no requests to load models: run `triton-sam reload` on its machine or inside its container, "
            f"or {_START_WITH_ADMIN}"
        )
    if _RESTRICTED in message:
        return (
            f"{url} accepts no administration, which sharing memory, traces and logging need: {_START_WITH_ADMIN} "
            f"({message})"
        )
    return ""


def _says_not_ready(message: str) -> bool:
    """Whether a model is missing. Triton's status differs between versions and protocols, but its message does not."""
    return bool(re.search(r"unknown model|model .*not found|no available version|not (at )?ready( state)?", message))


def _unavailable(url: ServerUrl, words: str) -> ServerUnreachableError:
    """Tell from gRPC's message whether there is no server at all, or a server that fails, for example in TLS."""
    said = words.lower()
    if re.search(_NOT_CONNECTED, said) and "handshake" not in said:
        return _nothing_answers(url, words.rpartition(": ")[2].rstrip("]"))
    return ServerUnreachableError(f"{url} is not available: {words}")


def all_outputs(
    arrays: Mapping[str, npt.NDArray[Any]], model: str, outputs: Sequence[str]
) -> dict[str, npt.NDArray[Any]]:
    """Return the named arrays of an answer.

    Raises:
        InferenceError: an output is missing.
    """
    missing = [name for name in outputs if name not in arrays]
    if missing:
        raise InferenceError(f"{model} sent no output {missing[0]!r}")
    return {name: arrays[name] for name in outputs}
