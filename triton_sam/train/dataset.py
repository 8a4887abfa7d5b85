"""Training scenes on disk and in memory: shards of generated scenes, drawn again with augmentation.

Drawing a scene takes as long as a training step, so a low-priority process writes shards ahead of the trainer, which
picks them up as they appear and uses every scene several times, each time cropped, turned and coloured anew.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from .._common.files import atomic_path
from ..errors import ConfigurationError
from ..scenes.canvas import Scene
from ..scenes.scenes import HELD_OUT_SEED, generate_scene

SHARD = 32
"""Scenes in a shard file."""


def training_seeds(first: int, count: int) -> range:
    """Return the seeds first..first+count-1, having checked that none is held out.

    Raises:
        ConfigurationError: a seed is negative or one of the held-out seeds.
    """
    if first < 0 or first + count > HELD_OUT_SEED:
        raise ConfigurationError(
            f"seeds {first}..{first + count - 1} are not for training: those from {HELD_OUT_SEED} on are held out"
        )
    return range(first, first + count)


def write_shard(path: Path, first_seed: int, size: int, difficulty: tuple[float, float]) -> None:
    """Draw `SHARD` scenes of a difficulty range into one file, atomically."""
    scenes = []
    for seed in training_seeds(first_seed, SHARD):
        share = (seed * 0.6180339887) % 1  # golden-ratio steps cover the range evenly for any run of seeds
        scenes.append(generate_scene(seed, size, difficulty[0] + share * (difficulty[1] - difficulty[0])))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial:
        np.savez(
            partial,
            images=np.stack([scene.image for scene in scenes]),
            labels=np.stack([scene.labels for scene in scenes]),
            parts=np.stack([scene.parts for scene in scenes]),
        )


def fill_cache(folder: Path, first_seed: int, shards: int, size: int, difficulty: tuple[float, float]) -> None:
    """Write the shards that are missing, at the lowest process priority."""
    os.nice(19)
    cv2.setNumThreads(1)
    for number in range(shards):
        seed = first_seed + number * SHARD
        path = folder / f"{size}_{seed:08d}.npz"
        if not path.exists():
            write_shard(path, seed, size, difficulty)


@dataclass(frozen=True)
class Example:
    """One augmented scene, square.

    Attributes:
        image: uint8 (S, S, 3).
        labels: uint8 (S, S), objects, 0 for the background.
        parts: uint8 (S, S), parts of objects, 0 elsewhere.
    """

    image: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    parts: NDArray[np.uint8]


class ScenePool:
    """The scenes of a cache folder, in memory; `refresh` takes in shards that were written since."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size
        self._shards: dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]] = {}
        self.refresh()

    def refresh(self) -> int:
        """Load new shards. Returns the number of scenes at hand."""
        for path in sorted(self._folder.glob(f"{self._size}_????????.npz")):
            training_seeds(int(path.stem.split("_")[1]), SHARD)
            if path.name not in self._shards:
                with np.load(path) as content:
                    self._shards[path.name] = (content["images"], content["labels"], content["parts"])
        return self.count

    @property
    def count(self) -> int:
        """Scenes at hand."""
        return SHARD * len(self._shards)

    def draw(self, rng: np.random.Generator, most: int | None = None) -> Example:
        """Pick a scene at random, among the first `most` if given.

        Raises:
            ConfigurationError: the folder holds no shard of this size.
        """
        if not self._shards:
            raise ConfigurationError(f"no scenes of {self._size} px in {self._folder}: generate some first")
        names = sorted(self._shards)
        scenes = SHARD * len(names)
        shard, number = divmod(int(rng.integers(min(scenes, most or scenes))), SHARD)
        images, labels, parts = self._shards[names[shard]]
        return Example(images[number], labels[number], parts[number])


def example_of(scene: Scene) -> Example:
    """Take a freshly drawn scene as it is."""
    return Example(scene.image, scene.labels, scene.parts)


def augment(
    rng: np.random.Generator, example: Example, size: int, least_crop: float, whole_share: float = 0.4
) -> Example:
    """Crop, resize to `size`, turn, flip and recolour.

    The crop is the whole scene with a chance of `whole_share`, otherwise a square of `least_crop`..1 of its side; the
    logarithm of that is uniform, so that every scale is seen alike.
    """
    side = example.image.shape[0]
    crop = side if rng.random() < whole_share else int(side * least_crop ** rng.random())
    top, left = (int(n) for n in rng.integers(0, side - crop + 1, 2))
    window = (slice(top, top + crop), slice(left, left + crop))
    cut = resized(Example(example.image[window], example.labels[window], example.parts[window]), size)
    turns, flip = int(rng.integers(4)), rng.random() < 0.5
    image, labels, parts = (np.rot90(array, turns) for array in (cut.image, cut.labels, cut.parts))
    if flip:
        image, labels, parts = image[:, ::-1], labels[:, ::-1], parts[:, ::-1]
    return Example(
        recolour(rng, np.asarray(image, np.uint8)), np.ascontiguousarray(labels), np.ascontiguousarray(parts)
    )


def resized(example: Example, size: int) -> Example:
    """Bring an example to another side, its maps where the picture is (INTER_NEAREST is up to half a pixel beside)."""
    smooth = cv2.INTER_AREA if example.image.shape[0] > size else cv2.INTER_LINEAR
    image, labels, parts = (
        np.asarray(cv2.resize(array, (size, size), interpolation=how), np.uint8)
        for array, how in (
            (example.image, smooth),
            (example.labels, cv2.INTER_NEAREST_EXACT),
            (example.parts, cv2.INTER_NEAREST_EXACT),
        )
    )
    return Example(image, labels, parts)


def recolour(rng: np.random.Generator, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Change brightness, contrast and gamma; swap channels, invert or drop colour by chance."""
    picture = image[..., rng.permutation(3)] if rng.random() < 0.5 else image
    table = np.linspace(0, 1, 256) ** np.exp(rng.normal(0, 0.25))
    if rng.random() < 0.25:
        table = 1 - table
    table = np.clip((table - 0.5) * rng.uniform(0.6, 1.25) + 0.5 + rng.normal(0, 0.06), 0, 1)
    changed: NDArray[np.uint8] = (table * 255 + 0.5).astype(np.uint8)[picture]
    if rng.random() < 0.15:
        grey = (changed @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)
        changed = np.repeat(grey[..., None], 3, axis=2)
    return np.ascontiguousarray(changed)
