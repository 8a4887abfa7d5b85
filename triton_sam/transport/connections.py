"""The gRPC channel that all threads share. It is created at the first call and replaced when it fails."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError

CLOSED = "this client is closed"


class SharedClient:
    """One client for all threads.

    Args:
        connect: creates the client.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._client: Any = None
        self._closed = False
        self._lock = threading.Lock()

    def get(self) -> Any:
        """Return the client, which the first call creates.

        Raises:
            ConfigurationError: close() was called.
        """
        with self._lock:
            if self._closed:
                raise ConfigurationError(CLOSED)
            if self._client is None:
                self._client = self._connect()
            return self._client

    def drop(self, failed: Any) -> None:
        """Stop returning a client that failed. Does nothing if another client has already replaced it.

        The failed client is not closed here, because other threads may still have calls on the wire. It closes itself
        after the last of them.
        """
        with self._lock:
            if self._client is failed:
                self._client = None

    def close(self) -> None:
        """Close the client."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # closing a broken channel may fail; it is not used again in any case
                client.close()
