"""Print the steps of an export and their durations to standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator


class Progress:
    """Prints short lines to standard error."""

    def __init__(self, title: str, enabled: bool = True) -> None:
        self.title = title
        self.enabled = enabled

    def line(self, text: str) -> None:
        """Print one line."""
        if self.enabled:
            print(f"{self.title}: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print the name of a step at its start, and its duration in seconds at its end."""
        if not self.enabled:
            yield
            return
        start = time.monotonic()
        print(f"{self.title}: {text} ...", end="", file=sys.stderr, flush=True)
        ending = " failed"
        try:
            yield
            ending = f" {time.monotonic() - start:.1f} s"
        finally:
            print(ending, file=sys.stderr, flush=True)
