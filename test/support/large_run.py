"""Runs `triton-sam` with arguments in a process that a test may kill, with a slow client of drawn images."""

from __future__ import annotations

import sys

from support.large_images import ColourServer, TileServer

from triton_sam.annotate import job
from triton_sam.cli import main
from triton_sam.commands import large

ColourServer.pause = 0.02
vars(job)["SamTritonClient"] = ColourServer
vars(large)["SamTritonClient"] = TileServer

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
