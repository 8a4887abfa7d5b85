"""A finder of words without a server, which finds the discs that `support.tracked` tracks, as defined by a scene."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from support.tracked import HEIGHT, SIDE, disc

from triton_sam.concepts.instances import Instance

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
