"""The gRPC channel that all threads share: made at the first call, replaced when it fails."""

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
        connect: makes it.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._client: Any = None
        self._closed = False
        self._lock = threading.Lock()

    def get(self) -> Any:
        """Return the client, made at the first call; ConfigurationError after close()."""
        with self._lock:
            if self._closed:
                raise ConfigurationError(CLOSED)
            if self._client is None:
                self._client = self._connect()
            return self._client

    def drop(self, failed: Any) -> None:
        """Hand a client that failed out no more; of no effect when another has taken its place.

        It is not closed: other threads may have calls on the wire. The last of them closes it.
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
            with contextlib.suppress(Exception):  # a broken channel may object; it is not used again either way
                client.close()
