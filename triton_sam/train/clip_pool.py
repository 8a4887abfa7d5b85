"""Training clips in memory, drawn by many processes, for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import nn

from ..scenes.clip import Clip
from ..scenes.motion import TRAINING_CLIPS, generate_training_clip
from .clips import CLIP_FRAMES, SIDE, MappedClip, map_clip
from .pools import Arrays, Pool, workers

_SHAPES = {"images": (CLIP_FRAMES, SIDE, SIDE, 3), "labels": (CLIP_FRAMES, SIDE, SIDE)}


class ClipPool:
    """Training clips with their maps on the device of a model.

    Args:
        folder: folder for the files, 10 MB for each clip. The run does not need them after fill().
        model: the SAM2Base that encodes.
        count: number of clips; each needs 20 MB of the device's memory.

    Raises:
        OSError: a file cannot be written.
    """

    def __init__(self, folder: Path, model: nn.Module, count: int) -> None:
        self._pool = Pool(folder, draw_clip, _SHAPES, count, "cpu")
        self._model = model
        self._mapped: dict[int, MappedClip] = {}

    def fill(self, processes: int, should_stop: Callable[[], bool]) -> bool:
        """Let a number of processes draw all clips.

        Returns:
            False if should_stop() ended the wait.

        Raises:
            ConfigurationError: a process was ended.
        """
        with workers(processes) as executor:
            self._pool.start(executor, Path())
            return self._pool.take(None, should_stop)

    def clip(self, number: int) -> MappedClip:
        """Return training clip 0, 1, 2, ..., which is encoded when it is first needed."""
        if number not in self._mapped:
            images, labels = (np.array(self._pool.tensors[name][number]) for name in ("images", "labels"))
            self._mapped[number] = map_clip(self._model, Clip(TRAINING_CLIPS + number, images, labels))
        return self._mapped[number]


def draw_clip(_folder: Path, number: int) -> Arrays:
    """Draw a clip: "images", (10, 512, 512, 3), and "labels", (10, 512, 512)."""
    clip = generate_training_clip(TRAINING_CLIPS + number, CLIP_FRAMES, SIDE)
    return {"images": clip.images, "labels": clip.labels}


__all__ = ["ClipPool", "draw_clip"]
