"""Calls with one deadline, and sockets that keep it; another thread can end a call at once.

A socket's own timeout starts anew with each read, so a server that sends a byte now and then could hold a call for
hours. The sockets here ask the call that uses them for the time that is left, before each read and each write.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

CONNECT_TIMEOUT = 10.0
"""Seconds that an attempt to connect may take, when the call itself may take longer."""
LONGEST_WAIT = 1e6
"""Seconds: the functions below take no timeout beyond some 24 days."""

_AddressInfo = tuple[int, int, int, str, Any]


class Call:
    """One call of the user: the time that is left for it, and the way to end it at once.

    Args:
        end: of the monotonic clock.
    """

    def __init__(self, end: float) -> None:
        self._end = end
        self._cancelled = False
        self._socket: TimedSocket | None = None

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

    def take(self, sock: TimedSocket) -> bool:
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
CURRENT = threading.local()
"""``call``: the one that this thread makes. urllib3 has no other way to tell it to a connection."""


class TimedSocket(socket.socket):
    """A socket each of whose reads and writes gets the time that is left for the call."""

    owner: Call | None = None
    is_shut = False

    def recv_into(self, *arguments: Any) -> int:
        """Read; the files that http.client reads from call this."""
        self.settimeout(CURRENT.call.left())
        return super().recv_into(*arguments)

    def send(self, *arguments: Any) -> int:
        """Write what fits; a TLS socket's sendall() calls this for each record."""
        self.settimeout(CURRENT.call.left())
        return super().send(*arguments)

    def sendall(self, *arguments: Any) -> None:
        """Write all; without TLS, the timeout holds for the whole."""
        self.settimeout(CURRENT.call.left())
        return super().sendall(*arguments)


class TimedTlsSocket(TimedSocket, ssl.SSLSocket):
    """The same with TLS; `ssl.SSLContext.sslsocket_class` takes it."""


def connect(host: str, port: int, call: Call) -> TimedSocket:
    """Connect to the first address of a host that takes the connection; each gets its share of the time left."""
    failure = OSError(f"no address of {host}")
    addresses = _resolve(host, port, call.left())
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = TimedSocket(family, kind, protocol)
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
