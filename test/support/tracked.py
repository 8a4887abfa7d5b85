"""A video client without a server, which tracks moving discs from any prompt in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

SIDE = 64
"""Side of the logits, and width of the video."""
HEIGHT = 48


@dataclass(frozen=True, eq=False)
class Found:
    """A mask in the form that the client returns."""

    mask: npt.NDArray[np.bool_]
    score: float
    object_score: float
    logits: npt.NDArray[np.float32] | None


def disc(x: float, y: float, radius: float = 9) -> Found:
    """Return a disc around a point, whose logits decrease with the distance."""
    rows, columns = np.mgrid[0:HEIGHT, 0:SIDE]
    logits = (radius - np.hypot(columns - x, rows - y)).astype(np.float32)
    return Found(logits > 0, 0.9, 5.0, logits)


@dataclass
class FakeVideo:
    """A video of discs that move one column to the right with each frame.

    Args:
        frames: number of frames.
        shift: columns by which the masks differ from those of other servers.
        every: distance between tracked frames.
    """

    frames: int
    shift: int = 0
    every: int = 1
    prompts: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    @property
    def num_frames(self) -> int:
        return self.frames

    @property
    def frame_size(self) -> tuple[int, int]:
        return SIDE, HEIGHT

    def add(
        self,
        frame: int,
        object_id: int,
        points: Sequence[Sequence[float]] | None = None,
        labels: Sequence[int] | None = None,
        box: Sequence[float] | None = None,
        mask: Any = None,
    ) -> Found:
        if points:
            x, y = points[0]
        elif box is not None:
            x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        else:
            rows, columns = np.nonzero(mask)
            x, y = float(columns.mean()), float(rows.mean())
        self.prompts[object_id] = (frame, x, y)
        return disc(x, y)

    def propagate(
        self, start: int | None = None, count: int | None = None, reverse: bool = False, *, logits: bool = True
    ) -> Iterator[tuple[int, dict[int, Found]]]:
        frame = min(first for first, _, _ in self.prompts.values()) if start is None else start
        left = self.frames if count is None else count
        while 0 <= frame < self.frames and left > 0:
            self.asked.append(frame)
            found = {
                object_id: disc(x + frame - first + self.shift, y) for object_id, (first, x, y) in self.prompts.items()
            }
            yield frame, found if logits else {key: replace(each, logits=None) for key, each in found.items()}
            frame, left = frame + (-self.every if reverse else self.every), left - 1
