"""The KServe v2 protocol over HTTP, with Triton's extension `binary_tensor_data`: tensors as bytes after the JSON."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http.client import RemoteDisconnected
from typing import Any, cast
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import urllib3
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    triton_to_np_dtype,
)
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ClosedPoolError, HTTPError, NewConnectionError, ProtocolError

from .._common import strict_json
from ..errors import ConfigurationError, InputError
from .base import Tensors
from .failures import ForeignAnswerError
from .options import CLOSED
from .timed_sockets import CURRENT, Call, TimedTlsSocket, connect
from .url import ServerUrl

JSON_LENGTH = "Inference-Header-Content-Length"
"""This header gives the length of the JSON, after which the bytes of the tensors begin."""
SMALL = 1 << 16
"""Up to this many bytes, joining the parts of a body costs less than writing them one by one."""
IDLE_CONNECTIONS = 64
"""Maximum number of idle connections that are kept for later calls. More may be in use at the same time."""

_as_json = json.JSONEncoder(separators=(",", ":")).encode

Body = list["bytes | memoryview"]


class KServeClient:
    """Calls one server over HTTP, from any number of threads, without retries and redirects.

    Every method may raise these errors: InferenceServerException if the server answers with an error, OSError if the
    connection cannot be made or breaks, TimeoutError if the call reaches its deadline, ValueError if the answer does
    not follow this protocol, urllib3's HTTPError if the answer is not valid HTTP or ends early, and ConfigurationError
    after close().

    Args:
        url: the server's URL; its path is the prefix of all paths.
        ca_certs: PEM file with the certificates to trust, for https; None for the system's.
    """

    def __init__(
        self, url: ServerUrl, *, headers: Mapping[str, str] | None = None, ca_certs: str | None = None
    ) -> None:
        parts = urllib3.util.parse_url(str(url))
        self._base = (parts.path or "").rstrip("/")
        self._headers = urllib3.HTTPHeaderDict(headers or {})
        self._new_pool: Callable[[], urllib3.HTTPConnectionPool] = partial(_pool_of, parts, ca_certs)
        self._pool = self._new_pool()
        self._process_id = os.getpid()

    def infer(self, model: str, inputs: Tensors, outputs: Sequence[str], call: Call) -> dict[str, npt.NDArray[Any]]:
        """Run one inference with the newest version of a model.

        Returns:
            Read-only arrays by output name. Outputs that the server did not send are missing.

        Raises:
            InputError: the protocol does not support the dtype of an array.
        """
        described: list[dict[str, Any]] = []
        tensors: Body = []
        for name, array in inputs.items():
            kind = np_to_triton_dtype(array.dtype)
            if kind is None:
                raise InputError(f"{name} is an array of {array.dtype}, a type that the server does not support")
            content = _content(array, kind)
            parameters = {"binary_data_size": sum(map(len, content))}
            tensors += content
            described.append({"name": name, "shape": array.shape, "datatype": kind, "parameters": parameters})
        wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        head = _as_json({"inputs": described, "outputs": wanted}).encode()
        headers = {JSON_LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
        path = f"v2/models/{quote(model, safe='')}/infer"
        return _arrays(*self._request("POST", path, call, [head, *tensors], headers))

    def is_ready(self, call: Call) -> bool:
        """Return whether the server reports that it is ready."""
        try:
            self._request("GET", "v2/health/ready", call)
        except (InferenceServerException, ForeignAnswerError):
            return False
        return True

    def version(self, call: Call) -> str:
        """Return the version of the server."""
        return str(self._ask("GET", "v2", call)["version"])

    def index(self, call: Call) -> list[dict[str, str]]:
        """Return name, version and state of every model in the server's repository."""
        return list(self._ask("POST", "v2/repository/index", call))

    def load_model(self, model: str, config: str | None, call: Call) -> None:
        """Make the server load a model. ``config`` (JSON) replaces the config.pbtxt; None keeps it."""
        parameters = {} if config is None else {"parameters": {"config": config}}
        path = f"v2/repository/models/{quote(model, safe='')}/load"
        self._request("POST", path, call, [strict_json.dumps(parameters).encode()])

    def model_config(self, model: str, call: Call) -> dict[str, Any]:
        """Return the configuration with which the server runs a model."""
        return dict(self._ask("GET", f"v2/models/{quote(model, safe='')}/config", call))

    def statistics(self, model: str, call: Call) -> dict[str, Any]:
        """Return Triton's statistics of a model: counts, and times in nanoseconds."""
        return dict(self._ask("GET", f"v2/models/{quote(model, safe='')}/stats", call)["model_stats"][0])

    def close(self) -> None:
        """Close idle connections now, and connections in use as soon as their calls end."""
        self._pool.close()
        self._new_pool = lambda: self._pool  # a forked child may not open it again

    def _ask(self, method: str, path: str, call: Call) -> Any:
        return json.loads(self._request(method, path, call)[0])

    def _request(
        self, method: str, path: str, call: Call, body: Body | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, bytes]:
        """Send a request; return the JSON of the answer, and the bytes after it."""
        every = self._headers.copy()
        every.update({**call.headers, **(headers or {})})
        if method == "POST":
            size = sum(map(len, body or ()))
            every["Content-Length"] = str(size)
            body = [b"".join(body)] if body and size <= SMALL else body
        if os.getpid() != self._process_id:  # a forked child would read answers to requests of its parent
            self._pool = self._new_pool()
            self._process_id = os.getpid()
        CURRENT.call = call
        try:
            answer = self._pool.urlopen(
                method,
                f"{self._base}/{path}",
                body=cast("Iterable[bytes] | None", body),
                headers=every,
                retries=False,
                redirect=False,
                timeout=None,
                preload_content=False,
            )
            if answer.length_remaining is None and not getattr(answer, "chunked", False):
                answer.close()
                raise ProtocolError("the answer's headers end early")  # http.client does not notice this
            if answer.status != 200:
                raise _error(answer.status, answer.read())
            length = answer.headers.get(JSON_LENGTH)
            if length is None:
                return answer.read(), b""
            if "Content-Encoding" in answer.headers:
                content = answer.read()
                return content[: int(length)], content[int(length) :]
            # Two reads, so that the arrays start at the beginning of a buffer and are aligned.
            return answer.read(int(length)), answer.read()
        except ClosedPoolError:
            raise ConfigurationError(CLOSED) from None
        except HTTPError as error:
            cause = _cause(error)
            if cause is error:
                raise
            raise cause from error
        finally:
            call.leave()
            CURRENT.call = None


def _pool_of(url: urllib3.util.Url, ca_certs: str | None) -> urllib3.HTTPConnectionPool:
    host = url.host or ""
    if url.scheme != "https":
        pool = urllib3.HTTPConnectionPool(host, url.port, maxsize=IDLE_CONNECTIONS)
        pool.ConnectionCls = TimedConnection
        return pool
    context = ssl.create_default_context(cafile=ca_certs)
    context.sslsocket_class = TimedTlsSocket
    secure = urllib3.HTTPSConnectionPool(host, url.port, maxsize=IDLE_CONNECTIONS, ssl_context=context)
    secure.ConnectionCls = TimedTlsConnection
    return secure


class TimedConnection(HTTPConnection):
    """A connection whose reads and writes end at the deadline of the call of this thread."""

    def connect(self) -> None:
        """Connect. The call can shut the connection down."""
        super().connect()
        CURRENT.call.take(self.sock)  # with TLS, this is not the socket of _new_conn()

    def request(self, *arguments: Any, **options: Any) -> None:
        """Send a request, over a new connection if the last one was shut down."""
        if self.sock is not None and not CURRENT.call.take(self.sock):
            self.close()  # the previous call was cancelled just as it ended; http.client reconnects
        super().request(*arguments, **options)

    def _new_conn(self) -> socket.socket:
        try:
            return connect(self._dns_host.strip("[]"), self.port or self.default_port, CURRENT.call)
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error


class TimedTlsConnection(TimedConnection, HTTPSConnection):
    """A TimedConnection with TLS."""


def _cause(error: HTTPError) -> Exception:
    """Return the system's error inside an error of urllib3, since it is more precise; else the error itself.

    RemoteDisconnected is not a system error: http.client raises it if the peer closes the connection without an answer.
    """
    inside = [each for each in (*error.args, error.__cause__) if isinstance(each, OSError)]
    return next((each for each in inside if not isinstance(each, RemoteDisconnected)), error)


def _error(status: int, content: bytes) -> Exception:
    """Return the error for an unsuccessful answer, with Triton's message."""
    try:
        message = str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return ForeignAnswerError(status)
    answer: Exception = InferenceServerException(message, status=str(status))
    return answer


def _content(array: npt.NDArray[Any], kind: str) -> Body:
    """Return the bytes of an array. Elements of type BYTES follow their lengths; other arrays are not copied."""
    if kind != "BYTES":
        return [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]
    parts: Body = []
    for element in array.ravel().tolist():
        content = element if isinstance(element, bytes) else str(element).encode()
        parts += [struct.pack("<I", len(content)), content]
    return parts


def _arrays(head: bytes, data: bytes) -> dict[str, npt.NDArray[Any]]:
    """Read the answer to an inference: arrays by output name."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    memory, offset = memoryview(data), 0
    try:
        for output in json.loads(head)["outputs"]:
            dtype = triton_to_np_dtype(output["datatype"])
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                array = np.array(output["data"], dtype)
            elif dtype is np.object_:
                array = deserialize_bytes_tensor(memory[offset : offset + size])
            else:
                array = np.frombuffer(memory[offset : offset + size], dtype)
                array = array if array.flags.aligned else array.copy()
            offset += size or 0
            arrays[output["name"]] = array.reshape(output["shape"])
    except (KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError("the answer is not one to an inference") from error
    return arrays
