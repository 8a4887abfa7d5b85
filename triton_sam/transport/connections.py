"""Where a transport keeps tritonclient's clients: a gRPC client for all threads, or an HTTP client for each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import ConfigurationError


class Connections(Protocol):
    """Hands out clients to any number of threads."""

    def get(self) -> Any:
        """Return the client for this thread, made at its first call; ConfigurationError after close()."""

    def drop(self, failed: Any) -> None:
        """Hand a client that failed out no more; of no effect when another has taken its place."""

    def close(self) -> None:
        """Close all clients."""


class SharedClient:
    """One client for all threads.

    Args:
        connect: makes it.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._client: Any = None
        self._closed = False
        self._lock = threading.Lock()

    def get(self) -> Any:
        """See Connections."""
        with self._lock:
            _check_open(self._closed)
            if self._client is None:
                self._client = self._connect()
            return self._client

    def drop(self, failed: Any) -> None:
        """See Connections. It is not closed: other threads may have calls on the wire. The last of them closes it."""
        with self._lock:
            if self._client is failed:
                self._client = None

    def close(self) -> None:
        """See Connections."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            _close_quietly(client)


class ThreadClients:
    """A client for each thread, closed when its thread has ended: as soon as another thread makes one.

    Args:
        connect: makes one.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._own = threading.local()
        self._owners: dict[Any, threading.Thread] = {}
        self._closed = False
        self._lock = threading.Lock()

    def get(self) -> Any:
        """See Connections."""
        _check_open(self._closed)
        client = getattr(self._own, "client", None)
        if client is None:
            _HUBS.keep()
            client = self._connect()
            self._add(client)
            self._own.client = client
        return client

    def drop(self, failed: Any) -> None:
        """See Connections. It is closed: its connection may hold half an answer."""
        client = getattr(self._own, "client", None)
        if client is None or client is not failed:
            return
        del self._own.client
        with self._lock:
            self._owners.pop(client, None)
        _close_quietly(client)

    def close(self) -> None:
        """See Connections."""
        with self._lock:
            self._closed = True
            clients, self._owners = list(self._owners), {}
        for client in clients:
            _close_quietly(client)

    def _add(self, client: Any) -> None:
        with self._lock:
            late = self._closed
            ended = [each for each, owner in self._owners.items() if not owner.is_alive()]
            for each in ended:
                del self._owners[each]
            if not late:
                self._owners[client] = threading.current_thread()
        for each in [*ended, *([client] if late else [])]:
            _close_quietly(each)
        _HUBS.sweep()
        _check_open(late)


class _Hubs:
    """Event loops that HTTP clients made gevent start in threads: two descriptors and a thread each, until destroyed.

    gevent ends none by itself when its thread ends, and allows others to do so from then on.
    """

    def __init__(self) -> None:
        self._owners: dict[Any, threading.Thread] = {}
        self._lock = threading.Lock()

    def keep(self) -> None:
        """Start this thread's loop; one that was there before is not ours to end, nor is that of the main thread."""
        import gevent
        from gevent._hub_local import get_hub_if_exists

        if get_hub_if_exists() is not None:
            return
        hub = gevent.get_hub()
        if not hub.loop.default:
            with self._lock:
                self._owners[hub] = threading.current_thread()

    def sweep(self) -> None:
        """Destroy the loops of threads that have ended."""
        with self._lock:
            ended = [hub for hub, owner in self._owners.items() if not owner.is_alive()]
            for hub in ended:
                del self._owners[hub]
        for hub in ended:
            with contextlib.suppress(Exception):
                hub.destroy(destroy_loop=True)


_HUBS = _Hubs()


def _check_open(closed: bool) -> None:
    if closed:
        raise ConfigurationError("this client is closed")


def _close_quietly(client: Any) -> None:
    # The client of another thread, or one with a broken connection, may object; it is not used again either way.
    with contextlib.suppress(Exception):
        client.close()
