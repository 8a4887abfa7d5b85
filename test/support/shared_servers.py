"""Ends each server that many tests share after the last test that uses it, because all of them fill the memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

Server = TypeVar("Server")

_ENDINGS = pytest.StashKey[dict[str, contextlib.ExitStack]]()
_LAST_USERS = pytest.StashKey[dict[str, str]]()


def shared(request: pytest.FixtureRequest, server: contextlib.AbstractContextManager[Server]) -> Iterator[Server]:
    """Yield a server from a fixture. It ends after the last test that uses the fixture, or with the run."""
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(server)
        request.config.stash.setdefault(_ENDINGS, {})[str(request.fixturename)] = stack
        yield running


def find_last_users(session: pytest.Session) -> None:
    """Remember the last test that uses each fixture. Call this when the order of the tests is final."""
    session.config.stash[_LAST_USERS] = {
        name: item.nodeid for item in session.items for name in getattr(item, "fixturenames", ())
    }


def end_unused(item: pytest.Item) -> None:
    """End the servers that no test after this one uses, the newest first."""
    last_users: dict[str, Any] = item.config.stash[_LAST_USERS]
    running = item.config.stash.get(_ENDINGS, {})
    for name in [name for name in reversed(running) if last_users.get(name) == item.nodeid]:
        running.pop(name).close()
