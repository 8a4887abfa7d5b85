"""Calls with a deadline, and sockets that respect it. Another thread can cancel a call at once.

The timeout of an ordinary socket restarts with each read: a server that sends a byte now and then could block a call
for hours. The sockets of this module limit each read and write to the remaining time of the current call.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CONNECT_TIMEOUT = 10.0
"""Seconds that an attempt to connect may take, unless the deadline of the call comes first."""
LONGEST_WAIT = 1e6
"""Seconds. System functions accept timeouts of at most about 24 days."""

_AddressInfo = tuple[int, int, int, str, Any]


class Call:
    """One call of the user. It has a deadline, and can be cancelled from another thread.

    Args:
        end: deadline in seconds of the monotonic clock.
        headers: further headers of its requests, for example those that continue a trace.
    """

    def __init__(self, end: float, headers: Mapping[str, str] | None = None) -> None:
        self.headers: Mapping[str, str] = headers or {}
        self._end = end
        self.is_cancelled = False
        self._socket: TimedSocket | None = None
        self.end_request: Callable[[], object] = bool
        """Ends a request that does not use a socket of this module."""

    def left(self) -> float:
        """Return the seconds until the deadline.

        Raises:
            TimeoutError: the deadline has passed.
            ConnectionAbortedError: the call was cancelled.
        """
        if self.is_cancelled:
            raise ConnectionAbortedError("the call was cancelled")
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the call has used up its time")
        return min(left, LONGEST_WAIT)

    def cancel(self) -> None:
        """End the call from another thread and shut down its connection. Does nothing if the call has ended."""
        with _OWNERS:
            self.is_cancelled = True
            sock = self._socket
            if sock is not None and sock.owner is self:
                sock.is_shut = True
                with contextlib.suppress(OSError):
                    # Not the shutdown() of the TLS socket, which would remove the encryption while this call may write.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        self.end_request()

    def take(self, sock: TimedSocket) -> bool:
        """Make this call the owner of a socket; return False if the socket was shut down."""
        with _OWNERS:
            if sock.is_shut:
                return False
            sock.owner, self._socket = self, sock
        self.left()
        return True

    def leave(self) -> None:
        """Give up the socket, so that cancel() no longer shuts it down."""
        with _OWNERS:
            sock, self._socket = self._socket, None
            if sock is not None and sock.owner is self:
                sock.owner = None


_OWNERS = threading.Lock()
CURRENT = threading.local()
"""``CURRENT.call`` is the call of this thread. urllib3 offers no other way to pass it to a connection."""


class TimedSocket(socket.socket):
    """A socket whose reads and writes each time out at the deadline of the current call."""

    owner: Call | None = None
    is_shut = False

    def recv_into(self, *arguments: Any) -> int:
        """Read. The file object that http.client reads from calls this method."""
        self.settimeout(CURRENT.call.left())
        return super().recv_into(*arguments)

    def send(self, *arguments: Any) -> int:
        """Write as much as fits. The sendall() of a TLS socket calls this method for each record."""
        self.settimeout(CURRENT.call.left())
        return super().send(*arguments)

    def sendall(self, *arguments: Any) -> None:
        """Write everything. Without TLS, the timeout applies to the whole write."""
        self.settimeout(CURRENT.call.left())
        return super().sendall(*arguments)


class TimedTlsSocket(TimedSocket, ssl.SSLSocket):
    """A TimedSocket with TLS, for `ssl.SSLContext.sslsocket_class`."""


def connect(host: str, port: int, call: Call) -> TimedSocket:
    """Connect to the first address of a host that accepts. The addresses share the remaining time evenly.

    Raises:
        TimeoutError: the call has used up its time.
        OSError: no address accepts; a ConnectionError if the last one did not answer in CONNECT_TIMEOUT.
    """
    failure: OSError | None = None
    addresses = resolve(host, port, call.left())
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        try:
            sock = TimedSocket(family, kind, protocol)
        except OSError as error:  # this machine has no addresses of this family, such as IPv6
            failure = failure or error
            continue
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
    if isinstance(failure, TimeoutError):
        call.left()
        raise ConnectionError(f"no connection within {CONNECT_TIMEOUT:g} s") from failure
    raise failure or OSError(f"{host} has no address")


def resolve(host: str, port: int, seconds: float) -> Sequence[_AddressInfo]:
    """Look up a host name in a separate thread, because the function of the system has no timeout."""
    found: queue.SimpleQueue[Sequence[_AddressInfo] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.put(error)
        except UnicodeError as error:  # not a valid name, for example one with a part of more than 63 letters
            found.put(OSError(f"{host} is not a host name: {error}"))

    threading.Thread(target=look_up, name="triton-sam-name", daemon=True).start()
    try:
        answer = found.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"the name {host} was not found in time") from None
    if isinstance(answer, OSError):
        raise answer
    return answer
