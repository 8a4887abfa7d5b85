"""Ends each server that many tests share after the last test that uses it, because all of them fill the memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

Server = TypeVar("Server")

_RUNNING = pytest.StashKey[dict[str, Any]]()
_LAST_USERS = pytest.StashKey[dict[str, str]]()


def shared(request: pytest.FixtureRequest, server: contextlib.AbstractContextManager[Server]) -> Iterator[Server]:
    """Yield a server from a fixture. It ends after the last test that uses the fixture, or with the run."""
    with server as running:
        request.config.stash.setdefault(_RUNNING, {})[str(request.fixturename)] = request
        yield running


def find_last_users(session: pytest.Session) -> None:
    """Remember the last test that uses each fixture. Call this when the order of the tests is final."""
    session.config.stash[_LAST_USERS] = {
        name: item.nodeid for item in session.items for name in getattr(item, "fixturenames", ())
    }


def return_free_memory() -> None:
    """Return freed memory of this process to the system. glibc kept 0.8 GB in the middle of a run."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def end_unused(item: pytest.Item) -> None:
    """End the servers that no test after this one uses, the newest first.

    pytest-xdist runs groups of tests in an order of its own, so a test that needs an ended server may still come.
    pytest then calls the fixture again, because it counts as finished.
    """
    last_users: dict[str, Any] = item.config.stash[_LAST_USERS]
    running = item.config.stash.get(_RUNNING, {})
    for name in [name for name in reversed(running) if last_users.get(name) == item.nodeid]:
        request = running.pop(name)
        request._fixturedef.finish(request)
