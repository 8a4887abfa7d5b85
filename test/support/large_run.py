"""Runs `triton-sam` with arguments in a process that a test may kill, with a slow client for drawn images.

After $TILES tiles, the client answers no more: a test that kills the process then finds it in the middle of its work.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.large_images import ColourServer, TileClient

from triton_sam.annotate import job
from triton_sam.cli import main
from triton_sam.commands import large

TILES = int(os.environ.get("TILES", "-1"))
_numbers = itertools.count()


def held(answer: Callable[..., Any]) -> Callable[..., Any]:
    def held_answer(*arguments: Any, **options: Any) -> Any:
        if 0 <= TILES <= next(_numbers):
            threading.Event().wait()
        time.sleep(0.02)
        return answer(*arguments, **options)

    return held_answer


vars(job)["SamTritonClient"] = ColourServer
ColourServer.everything = held(ColourServer.everything)  # type: ignore[method-assign]
TileClient.encode_here = held(TileClient.encode_here)  # type: ignore[method-assign]
vars(large)["SamTritonClient"] = TileClient


def peak() -> int:
    """Return the peak memory of this program in bytes. ru_maxrss would include its parent's before exec()."""
    found = re.search(r"(?m)^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if file := os.environ.get("PEAK_FILE"):
        Path(file).write_text(str(peak()), encoding="ascii")
    sys.exit(code)
