"""Runs `triton-sam` with arguments in a process that a test may kill, with a slow client for drawn images."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from support.large_images import ColourServer, TileServer

from triton_sam.annotate import job
from triton_sam.cli import main
from triton_sam.commands import large

ColourServer.pause = 0.02
vars(job)["SamTritonClient"] = ColourServer
vars(large)["SamTritonClient"] = TileServer


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
