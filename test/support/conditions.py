"""Waiting for a condition, with a limit that a busy machine keeps as well."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds after which a condition counts as never met."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
