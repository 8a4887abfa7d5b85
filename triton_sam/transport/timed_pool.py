"""HTTP connections that keep the deadline of a call."""

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
"""Connections that are kept for later calls; more may be in use at a time."""

Body = Sequence[bytes | memoryview]


class _TimedConnection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        CURRENT.call.take(self.sock)  # with TLS, another socket than the one in _new_conn()

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.sock is not None and not CURRENT.call.take(self.sock):
            self.close()  # the call before was cancelled as it ended; http.client connects anew by itself
        super().request(*arguments, **options)

    def _new_conn(self) -> socket.socket:
        try:
            return connect(self._dns_host.strip("[]"), self.port or self.default_port, CURRENT.call)
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error


class _TimedTlsConnection(_TimedConnection, HTTPSConnection):
    pass


class TimedPool:
    """Connections to one server, for any number of threads. Nothing is sent twice, and no redirect is followed.

    Args:
        url: of the server; its path is put in front of all paths.
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
        """Send a request and yield its answer, of which the caller reads all.

        Raises:
            ConfigurationError: the pool is closed.
            OSError: there is no connection, or it broke; TimeoutError: the call has used up its time.
            HTTPError: of urllib3: the answer is none of HTTP, or it ends early.
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
                raise ProtocolError("the head of the answer ends early")  # http.client takes it for a whole one
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
        """Close all connections, those that a call uses after it."""
        self._pool.close()


def _cause(error: HTTPError) -> Exception:
    """Return the system's error inside one of urllib3's: it says more. A peer that hangs up without a word has none."""
    inside = [each for each in (*error.args, error.__cause__) if isinstance(each, OSError)]
    return next((each for each in inside if not isinstance(each, RemoteDisconnected)), error)
