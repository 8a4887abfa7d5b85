"""The answers from which the head of the score learns: files of a folder, written once and read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .._common.files import atomic_path
from .._common.npz import write_npz
from ..scenes.motion import TRAINING_CLIPS, generate_training_clip
from ..scenes.scenes import generate_scene
from . import network
from .clips import CLIP_FRAMES, SIDE, map_clip
from .dataset import DrawScene, Example, augment, composite_drawer, recolour, training_seeds
from .score import Answers, answer_clip, answer_scene, join
from .stages import View

FIRST_SEED = 5_000_000
"""Seed of the first scene. The training of the masks uses smaller ones."""
FIRST_CLIP = 1000
"""Number of the first training clip. The training of the memory half uses smaller ones."""
SHARD_SCENES, SHARD_CLIPS = 8, 2
"""Number of scenes or of clips whose answers are in one file."""
_SCENE_SIDE = 512
_RECOLOURED = 0.5  # share of the scenes whose colours are changed
_MEASURED_SHARE = 8  # every eighth file is for measuring the head, not for training it; it shows whole frames
_WINDOWS = 4  # of a scene: drawing a scene takes longer than the answers for a window
_MAX_ZOOM = 1.5  # of a scene in a window, against its scale in the frame


@dataclass(frozen=True)
class Amounts:
    """The amounts of data.

    Attributes:
        scenes: number of drawn scenes, and of composites if there are materials.
        clips: number of clips.
        objects: number of objects of a scene.
        frame: side in pixels of the frame that the model sees.
        window: side in pixels of the windows of the frame, from which the head learns.
    """

    scenes: int
    clips: int
    objects: int = 6
    frame: int = 1024
    window: int = 256


class ScoreData:
    """Computes and keeps the answers of one model.

    Args:
        folder: the folder of the files, which is created. Use a new folder for other weights.
        model: the SAM2Base, in eval mode, whose `image_size` is the side of clips.
        materials: folder of scripts/collect_materials.py, for composites. None: no composites.
        amounts: the amounts of data.

    Raises:
        ConfigurationError: the folder of the materials cannot be used.
    """

    def __init__(self, folder: Path, model: nn.Module, materials: Path | None, amounts: Amounts) -> None:
        self._folder, self._model, self._amounts = folder, model, amounts
        self._drawers: dict[str, DrawScene] = {"drawn": generate_scene}
        if materials is not None:
            self._drawers["composites"] = composite_drawer(materials)
        folder.mkdir(parents=True, exist_ok=True)

    def read(
        self, tell: Callable[[str], None], should_stop: Callable[[], bool]
    ) -> tuple[dict[str, Answers], dict[str, Answers]] | None:
        """Return the answers to learn from and those to measure with, each by the sort of their pictures.

        Files that are missing are computed first, all sorts in turn.

        Args:
            tell: receives lines about the progress.
            should_stop: asked between two files; True ends the work.

        Returns:
            The answers, or None if the work was ended.
        """
        learned: dict[str, list[Answers]] = {}
        measured: dict[str, list[Answers]] = {}
        for done, (sort, number) in enumerate(self._files()):
            if should_stop():
                return None
            if done % 20 == 0:
                tell(f"answers: file {done}")
            target = measured if number % _MEASURED_SHARE == 0 else learned
            target.setdefault(sort, []).append(self._file(sort, number))
        return {k: join(v) for k, v in learned.items()}, {k: join(v) for k, v in measured.items()}

    def _files(self) -> list[tuple[str, int]]:
        """Return (sort, number) of all files, in an order that spreads each sort over the whole."""
        counts = dict.fromkeys(self._drawers, -(-self._amounts.scenes // SHARD_SCENES))
        counts["clips"] = -(-self._amounts.clips // SHARD_CLIPS)
        files = [((number + 0.5) / count, sort, number) for sort, count in counts.items() for number in range(count)]
        return [(sort, number) for _, sort, number in sorted(files)]

    def _file(self, sort: str, number: int) -> Answers:
        """Return the answers of a file, which is written if it is missing."""
        path = self._folder / f"{sort}_{number:04d}.npz"
        if not path.is_file():
            parts = self._clips(number) if sort == "clips" else self._scenes(self._drawers[sort], number)
            found = join(parts)
            with atomic_path(path) as partial, partial.open("wb") as stream:
                write_npz(stream, {name: getattr(found, name).numpy() for name in ("tokens", "iou", "kinds")})
        with np.load(path) as stored:
            return Answers(*(torch.from_numpy(stored[name]) for name in ("tokens", "iou", "kinds")))

    def _scenes(self, draw: DrawScene, number: int) -> list[Answers]:
        parts: list[Answers] = []
        for seed in training_seeds(FIRST_SEED + number * SHARD_SCENES, SHARD_SCENES):
            rng = np.random.default_rng(seed)
            scene = draw(seed, _SCENE_SIDE, float(rng.random()))
            whole = Example(scene.image, scene.labels, np.zeros_like(scene.labels))  # the score is that of an object
            parts += self._frame(whole, rng) if number % _MEASURED_SHARE == 0 else self._windows(whole, rng)
        return parts

    def _frame(self, scene: Example, rng: np.random.Generator) -> list[Answers]:
        image = recolour(rng, scene.image) if rng.random() < _RECOLOURED else scene.image
        window = network.Window(self._amounts.frame, self._amounts.frame)
        return answer_scene(self._model, replace(scene, image=image), window, self._amounts.objects, rng)

    def _windows(self, scene: Example, rng: np.random.Generator) -> list[Answers]:
        """Return the answers for windows of a scene: a sixteenth of the frame takes a sixteenth of the time."""
        parts: list[Answers] = []
        view = View(self._amounts.window, self._amounts.frame)
        for _ in range(_WINDOWS):
            share = view.size / view.frame
            part = augment(rng, scene, view.size, share / _MAX_ZOOM, whole_share=0.25)
            parts += answer_scene(self._model, part, view.window(rng), self._amounts.objects, rng)
        return parts

    def _clips(self, number: int) -> list[Answers]:
        parts: list[Answers] = []
        for index in range(FIRST_CLIP + number * SHARD_CLIPS, FIRST_CLIP + (number + 1) * SHARD_CLIPS):
            clip = map_clip(self._model, generate_training_clip(TRAINING_CLIPS + index, CLIP_FRAMES, SIDE))
            parts += answer_clip(self._model, clip, np.random.default_rng(index))
        return parts
