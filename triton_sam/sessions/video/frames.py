"""The set of frames that a pass has visited, as runs, so that a video without an end takes no more memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_RUNS = 256
"""Number of runs that are kept. A pass over every frame, or over every n-th, is one run."""


@dataclass
class Run:
    """Frames first, first + step, ..., last, all visited in one direction. A single frame has step 0."""

    first: int
    last: int
    step: int
    reverse: bool

    def __contains__(self, frame: int) -> bool:
        low, high = min(self.first, self.last), max(self.first, self.last)
        return low <= frame <= high and (self.step == 0 or (frame - self.first) % abs(self.step) == 0)

    def extend(self, frame: int, reverse: bool) -> bool:
        """Append a frame; return False if it does not continue the run."""
        step = frame - self.last
        if reverse != self.reverse or step == 0 or self.step not in (0, step):
            return False
        self.last, self.step = frame, step
        return True

    def without(self, frame: int) -> list[Run]:
        """Return the runs that remain without a frame of this run."""
        parts = ((self.first, frame - self.step), (frame + self.step, self.last)) if self.step else ()
        return [
            Run(first, last, self.step if first != last else 0, self.reverse)
            for first, last in parts
            if first == last or (last - first > 0) == (self.step > 0)
        ]


class TrackedFrames:
    """The frames that a pass has visited, each with the direction of its last visit.

    Args:
        runs: the runs, the latest last.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs = list(runs)

    def direction(self, frame: int) -> bool | None:
        """Return whether the last visit of a frame was in reverse; None if no pass has visited it."""
        return next((run.reverse for run in reversed(self.runs) if frame in run), None)

    def add(self, frame: int, reverse: bool) -> None:
        """Note a visit."""
        if self.direction(frame) == reverse:
            return
        if self.runs and self.runs[-1].extend(frame, reverse):
            return
        self.runs.append(Run(frame, frame, 0, reverse))
        del self.runs[:-MAX_RUNS]

    def remove(self, frame: int) -> None:
        """Forget all visits of a frame."""
        self.runs = [part for run in self.runs for part in (run.without(frame) if frame in run else [run])]
