"""HTTP connections on which one deadline holds for a whole call, and which another thread can cancel.

urllib3's own timeouts start anew with each read, so a server that sends a byte now and then could hold a call for
hours. The sockets here ask the call that uses them for the time that is left, before each read and each write.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.client import RemoteDisconnected
from typing import Any, cast

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NewConnectionError, ProtocolError

from .url import ServerUrl

CONNECT_TIMEOUT = 10.0
"""Seconds that an attempt to connect may take, when the call itself may take longer."""
IDLE_CONNECTIONS = 64
"""Connections that are kept for later calls; more may be in use at a time."""
LONGEST_WAIT = 1e6
"""Seconds: the functions below take no timeout beyond some 24 days."""

Body = Sequence[bytes | memoryview]
_AddressInfo = tuple[int, int, int, str, Any]


class Call:
    """One call of the user: the time that is left for it, and the way to end it at once.

    Args:
        end: of the monotonic clock.
    """

    def __init__(self, end: float) -> None:
        self._end = end
        self._cancelled = False
        self._socket: _TimedSocket | None = None

    def left(self) -> float:
        """Return the seconds that are left.

        Raises:
            TimeoutError: none are.
            ConnectionAbortedError: the call was cancelled.
        """
        if self._cancelled:
            raise ConnectionAbortedError("the call was cancelled")
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the call has used up its time")
        return min(left, LONGEST_WAIT)

    def cancel(self) -> None:
        """End the call from another thread; a connection that it uses is shut down. Of no effect when it has ended."""
        with _OWNERS:
            self._cancelled = True
            sock = self._socket
            if sock is not None and sock.owner is self:
                sock.is_shut = True
                with contextlib.suppress(OSError):
                    # Not the TLS socket's own method: it would drop the encryption from under a write of this call.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def take(self, sock: _TimedSocket) -> bool:
        """Make this call the one that a socket serves; return whether the socket can still be used."""
        with _OWNERS:
            if sock.is_shut:
                return False
            sock.owner, self._socket = self, sock
        self.left()
        return True

    def leave(self) -> None:
        """Give the socket back: from here on cancel() leaves it alone."""
        with _OWNERS:
            sock, self._socket = self._socket, None
            if sock is not None and sock.owner is self:
                sock.owner = None


_OWNERS = threading.Lock()
_CURRENT = threading.local()
"""``call``: the one that this thread makes. urllib3 has no other way to tell it to a connection."""


class _TimedSocket(socket.socket):
    """A socket each of whose reads and writes gets the time that is left for the call."""

    owner: Call | None = None
    is_shut = False

    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(_CURRENT.call.left())
        return super().recv_into(*arguments)

    def send(self, *arguments: Any) -> int:  # a TLS socket sends with it, a record at a time
        self.settimeout(_CURRENT.call.left())
        return super().send(*arguments)

    def sendall(self, *arguments: Any) -> None:
        self.settimeout(_CURRENT.call.left())
        return super().sendall(*arguments)


class _TimedTlsSocket(_TimedSocket, ssl.SSLSocket):
    pass


class _Timed(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        _CURRENT.call.take(self.sock)  # with TLS, another socket than the one in _new_conn()

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.sock is not None and not _CURRENT.call.take(self.sock):
            self.close()  # the call before was cancelled as it ended; http.client connects anew by itself
        super().request(*arguments, **options)

    def _new_conn(self) -> socket.socket:
        try:
            return _connect(self._dns_host.strip("[]"), self.port or self.default_port, _CURRENT.call)
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error


class _TimedConnection(_Timed):
    pass


class _TimedTlsConnection(_Timed, HTTPSConnection):
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
            context.sslsocket_class = _TimedTlsSocket
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
            OSError: there is no connection, or it broke; TimeoutError: the call has used up its time.
            HTTPError: of urllib3: the answer is none of HTTP, or it ends early.
        """
        if method == "POST":
            headers = urllib3.HTTPHeaderDict(headers)
            headers["Content-Length"] = str(sum(map(len, body)))
        _CURRENT.call = call
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
        except HTTPError as error:
            cause = _cause(error)
            if cause is error:
                raise
            raise cause from error
        finally:
            call.leave()
            _CURRENT.call = None

    def close(self) -> None:
        """Close the connections that no call uses."""
        self._pool.close()


def _cause(error: HTTPError) -> Exception:
    """Return the system's error inside one of urllib3's: it says more. A peer that hangs up without a word has none."""
    inside = [each for each in (*error.args, error.__cause__) if isinstance(each, OSError)]
    return next((each for each in inside if not isinstance(each, RemoteDisconnected)), error)


def _connect(host: str, port: int, call: Call) -> _TimedSocket:
    """Connect to the first address of a host that takes the connection; each gets its share of the time left."""
    failure = OSError(f"no address of {host}")
    addresses = _resolve(host, port, call.left())
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = _TimedSocket(family, kind, protocol)
        try:
            call.take(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(min(CONNECT_TIMEOUT, call.left() / (len(addresses) - number)))
            sock.connect(address)
            sock.settimeout(call.left())  # for the TLS handshake
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def _resolve(host: str, port: int, seconds: float) -> Sequence[_AddressInfo]:
    """Look a name up in a thread of its own: the system's function knows no timeout."""
    found: queue.SimpleQueue[Sequence[_AddressInfo] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.put(error)
        except UnicodeError as error:  # no name at all, for example with a part of more than 63 letters
            found.put(OSError(f"{host} is no host name: {error}"))

    threading.Thread(target=look_up, name="triton-sam-name", daemon=True).start()
    try:
        answer = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"the name {host} was not found in time") from None
    if isinstance(answer, OSError):
        raise answer
    return answer
