"""Clients without a server that track moving discs from any prompt, and find them by words."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.concepts.instances import Instance

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


Seen = tuple[str, float, float, float]
"""Text, x and y in frame 0, and score of a disc that moves one column to the right per frame."""


def write_clip(folder: Path, frames: int) -> Path:
    """Write images whose red channel is the frame number."""
    folder.mkdir()
    for frame in range(frames):
        Image.new("RGB", (SIDE, HEIGHT), (20 * frame, 60, 90)).save(folder / f"{frame:05d}.png")
    return folder


@dataclass
class FakeFinder:
    """Finds the discs of a scene, by frame.

    Args:
        scene: the visible discs of each frame; other frames are empty.
        asked: the frame and the parameters of each search.
    """

    scene: dict[int, list[Seen]]
    asked: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def find(self, texts: Sequence[str], *, image: bytes, **details: Any) -> list[Instance]:
        frame = int(np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))[0, 0, 0]) // 20
        self.asked.append((frame, details))
        found = []
        for index, text in enumerate(texts):
            rows = sorted((row for row in self.scene.get(frame, []) if row[0] == text), key=lambda row: -row[3])
            for place, (_, x, y, score) in enumerate(rows):
                mask = np.asarray(disc(x + frame, y).mask)
                if score > details["threshold"]:
                    found.append(Instance(mask, score, None, index, place, (x, y, x + 1, y + 1), label=text))
        return found

    def __enter__(self) -> FakeFinder:
        return self

    def __exit__(self, *_: object) -> None:
        pass
