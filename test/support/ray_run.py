"""Runs `triton-sam` with stand-ins for its clients, also in the processes of Ray's actors.

A stand-in segments the boxes of small images, or finds the objects of large images by their colours.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from support.annotated import FakeClient, FakeServers
from support.large_images import ColourServer

from triton_sam import cli
from triton_sam.annotate.job import Job
from triton_sam.commands import annotate

PAUSE = 0.05
"""Seconds per image or tile of a stand-in."""


class StandInJob(Job):
    """A job whose clients need no server, in each of its processes."""

    @contextlib.contextmanager
    def clients(self) -> Iterator[list[Any]]:
        ColourServer.pause = PAUSE
        yield [SlowClient(FakeServers(), "fake", "sam2") if self.tiling is None else ColourServer()]


class SlowClient(FakeClient):
    """A stand-in that takes a while for each image."""

    def segment(self, **options: Any) -> Any:
        time.sleep(PAUSE)
        return super().segment(**options)


def main() -> None:
    """Run the command of the arguments. The actors import this module, so it must not run as `__main__`."""
    vars(annotate)["Job"] = StandInJob
    sys.exit(cli.main())
