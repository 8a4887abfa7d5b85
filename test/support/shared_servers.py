"""Ends a shared server when the next tests do not use it, because all servers together would fill the memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from support.two_workers import same_group

Server = TypeVar("Server")

_RUNNING = pytest.StashKey[dict[str, Any]]()


def shared(request: pytest.FixtureRequest, server: contextlib.AbstractContextManager[Server]) -> Iterator[Server]:
    """Yield a server from a fixture. It ends before a group of tests without the fixture."""
    with server as running:
        request.config.stash.setdefault(_RUNNING, {})[str(request.fixturename)] = request
        yield running


def return_free_memory() -> None:
    """Return freed memory of this process to the system. In the middle of a run, glibc kept 0.8 GB."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def end_unused(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the servers that the next group of tests does not use, newest first.

    If a later test needs a server again, pytest calls the fixture again, because it counts as finished.
    """
    if same_group(item, nextitem):
        return
    needed = getattr(nextitem, "fixturenames", ())
    running = item.config.stash.get(_RUNNING, {})
    for name in [name for name in reversed(running) if name not in needed]:
        request = running.pop(name)
        request._fixturedef.finish(request)
    return_free_memory()
