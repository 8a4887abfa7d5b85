"""Programs that run until the end of a `with` block, which begins when they are ready."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from support.conditions import PATIENCE


def answers(url: str) -> bool:
    """Return whether a request to a URL succeeds with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def running_program(
    command: Sequence[str | os.PathLike[str]],
    log: Path,
    is_ready: Callable[[], bool],
    seconds: float = PATIENCE,
    **options: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program whose output goes to the end of a log. Fail if it ends, or takes too long, before it is ready.

    The options are those of Popen. SIGTERM ends the program, unless the block has ended it.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **options)
    try:
        deadline = time.monotonic() + seconds
        while process.poll() is not None or not is_ready():
            status = process.poll()
            if status is not None or time.monotonic() > deadline:
                fault = f"is not ready within {seconds:g} s" if status is None else f"ended with {status}"
                said = log.read_text(errors="replace")[-2000:]
                raise AssertionError(f"{[*map(str, command)]} {fault}: {said}")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
