"""HTTP connections whose reads and writes end at the deadline of the call."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.client import RemoteDisconnected
from typing import Any, cast

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ClosedPoolError, HTTPError, NewConnectionError, ProtocolError

from ..errors import ConfigurationError
from .connections import CLOSED
from .timed_sockets import CURRENT, Call, TimedTlsSocket, connect
from .url import ServerUrl

IDLE_CONNECTIONS = 64
"""Maximum number of idle connections that are kept for later calls. More may be in use at the same time."""

Body = Sequence[bytes | memoryview]


class _TimedConnection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        CURRENT.call.take(self.sock)  # with TLS, this is another socket than the one of _new_conn()

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.sock is not None and not CURRENT.call.take(self.sock):
            self.close()  # the previous call was cancelled just as it ended; http.client connects again
        super().request(*arguments, **options)

    def _new_conn(self) -> socket.socket:
        try:
            return connect(self._dns_host.strip("[]"), self.port or self.default_port, CURRENT.call)
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error


class _TimedTlsConnection(_TimedConnection, HTTPSConnection):
    pass


class TimedPool:
    """Connections to one server, for any number of threads. The pool repeats no request and follows no redirect.

    Args:
        url: URL of the server; its path is the prefix of all paths.
        ca_certs: PEM file with the certificates to trust, for https; None for the system's.
    """

    def __init__(self, url: ServerUrl, ca_certs: str | None = None) -> None:
        parts = urllib3.util.parse_url(str(url))
        self._base = (parts.path or "").rstrip("/")
        self._pool: urllib3.HTTPConnectionPool
        if url.is_secure:
            context = ssl.create_default_context(cafile=ca_certs)
            context.sslsocket_class = TimedTlsSocket
            self._pool = urllib3.HTTPSConnectionPool(
                parts.host or "", parts.port, maxsize=IDLE_CONNECTIONS, ssl_context=context
            )
            self._pool.ConnectionCls = _TimedTlsConnection
        else:
            self._pool = urllib3.HTTPConnectionPool(parts.host or "", parts.port, maxsize=IDLE_CONNECTIONS)
            self._pool.ConnectionCls = _TimedConnection

    @contextlib.contextmanager
    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: Body, call: Call
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send a request and yield its answer, which the caller must read completely.

        Raises:
            ConfigurationError: the pool is closed.
            OSError: the connection cannot be made or broke.
            TimeoutError: the call has reached its deadline.
            HTTPError: (of urllib3) the answer is not valid HTTP, or it ends early.
        """
        if method == "POST":
            headers = urllib3.HTTPHeaderDict(headers)
            headers["Content-Length"] = str(sum(map(len, body)))
        CURRENT.call = call
        try:
            answer = self._pool.urlopen(
                method,
                f"{self._base}/{path}",
                body=cast("Iterable[bytes]", body) or None,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=None,
                preload_content=False,
            )
            if answer.length_remaining is None and not getattr(answer, "chunked", False):
                answer.close()
                raise ProtocolError("the head of the answer ends early")  # http.client does not notice this
            yield answer
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

    def close(self) -> None:
        """Close idle connections now, and connections in use as soon as their calls end."""
        self._pool.close()


def _cause(error: HTTPError) -> Exception:
    """Return the system's error inside an error of urllib3, since it is more precise; else the error itself.

    RemoteDisconnected is no system error: http.client raises it when the peer hangs up without an answer.
    """
    inside = [each for each in (*error.args, error.__cause__) if isinstance(each, OSError)]
    return next((each for each in inside if not isinstance(each, RemoteDisconnected)), error)
