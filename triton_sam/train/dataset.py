"""The cache of training scenes: shards (files with several generated scenes) on disk and in memory.

Drawing a scene takes as long as a training step. Therefore a low-priority process writes shards in advance. The trainer
loads shards as they appear and uses each scene several times, with a different crop, rotation and colour each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from .._common.files import atomic_path
from .._common.npz import write_npz
from ..errors import ConfigurationError
from ..scenes.canvas import Scene
from ..scenes.composites import generate_composite
from ..scenes.materials import Materials
from ..scenes.scenes import HELD_OUT_SEED, generate_scene

SHARD_SIZE = 32
"""Number of scenes in a shard file."""


def training_seeds(first: int, count: int) -> range:
    """Return the seeds first..first+count-1 after checking that none of them is held out.

    Raises:
        ConfigurationError: a seed is negative or held out.
    """
    if first < 0 or first + count > HELD_OUT_SEED:
        raise ConfigurationError(
            f"seeds {first}..{first + count - 1} cannot be used for training: use seeds from 0 to "
            f"{HELD_OUT_SEED - 1}, since later seeds are held out"
        )
    return range(first, first + count)


def spread(seed: int) -> float:
    """Return a number of 0..1 for a seed; those of successive seeds are spread evenly."""
    return seed * 0.6180339887 % 1  # multiples of the golden ratio


DrawScene = Callable[[int, int, float], Scene]
"""A function (seed, side in pixels, difficulty) that returns a scene."""


def composite_drawer(folder: Path) -> DrawScene:
    """Return a function that draws composites from the materials of a folder that are not held out.

    Raises:
        ConfigurationError: the folder contains no such materials.
    """
    materials = Materials(folder)
    return lambda seed, size, difficulty: generate_composite(materials, seed, size, difficulty)


def write_shard(
    path: Path, first_seed: int, size: int, difficulty: tuple[float, float], draw: DrawScene = generate_scene
) -> None:
    """Draw `SHARD_SIZE` scenes and write them to a NumPy .npz file, atomically.

    Args:
        path: the file to write; its folder is created if needed.
        first_seed: seed of the first scene; the others have the seeds after it.
        size: side of the scenes in pixels.
        difficulty: range of difficulties, within 0..1, over which the scenes are spread evenly.
        draw: draws a scene.

    Raises:
        ConfigurationError: a seed is negative or held out.
        OSError: the file cannot be written.
    """
    easiest, hardest = difficulty
    seeds = training_seeds(first_seed, SHARD_SIZE)
    scenes = [draw(seed, size, easiest + spread(seed) * (hardest - easiest)) for seed in seeds]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial, partial.open("wb") as stream:
        arrays = {
            "images": np.stack([scene.image for scene in scenes]),
            "labels": np.stack([scene.labels for scene in scenes]),
            "parts": np.stack([scene.parts for scene in scenes]),
        }
        write_npz(stream, arrays)


def fill_cache(
    folder: Path,
    first_seed: int,
    shards: int,
    size: int,
    difficulty: tuple[float, float],
    draw: DrawScene = generate_scene,
) -> None:
    """Write the shards that a cache folder lacks. Sets this process to the lowest priority.

    Args:
        folder: the cache folder.
        first_seed: seed of the first scene of the first shard.
        shards: number of shards.
        size: side of the scenes in pixels.
        difficulty: see write_shard.
        draw: draws a scene.
    """
    os.nice(19)
    cv2.setNumThreads(1)
    for number in range(shards):
        seed = first_seed + number * SHARD_SIZE
        path = folder / f"{size}_{seed:08d}.npz"
        if not path.exists():
            write_shard(path, seed, size, difficulty, draw)


@dataclass(frozen=True)
class Example:
    """A square training example: a scene, augmented or not.

    Attributes:
        image: uint8 (S, S, 3), RGB.
        labels: uint8 (S, S), the number of the object at each pixel, or 0 for the background.
        parts: uint8 (S, S), the number of the part at each pixel, or 0.
        complete: False if the background, a photograph, may show objects without a number.
    """

    image: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    parts: NDArray[np.uint8]
    complete: bool = True


class ScenePool:
    """The scenes of one size from a cache folder, held in memory.

    Args:
        folder: the cache folder.
        size: side of the scenes in pixels.
        complete: see Example.

    Raises:
        ConfigurationError: the folder contains a shard of held-out scenes.
    """

    def __init__(self, folder: Path, size: int, complete: bool = True) -> None:
        self._folder, self._size, self._complete = folder, size, complete
        self._shards: dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]] = {}
        self.refresh()

    def refresh(self) -> int:
        """Load the shards that were written since the last call. Returns the number of loaded scenes."""
        for path in sorted(self._folder.glob(f"{self._size}_????????.npz")):
            training_seeds(int(path.stem.split("_")[1]), SHARD_SIZE)
            if path.name not in self._shards:
                with np.load(path) as content:
                    self._shards[path.name] = (content["images"], content["labels"], content["parts"])
        return self.count

    @property
    def count(self) -> int:
        """Number of loaded scenes."""
        return SHARD_SIZE * len(self._shards)

    def draw(self, rng: np.random.Generator, limit: int | None = None) -> Example:
        """Choose a scene at random from the first `limit` scenes, or from all if that is None.

        Raises:
            ConfigurationError: the folder contains no shard of this size.
        """
        if not self._shards:
            raise ConfigurationError(f"there are no scenes of {self._size} px in {self._folder}: generate some first")
        names = sorted(self._shards)
        scenes = SHARD_SIZE * len(names)
        shard, number = divmod(int(rng.integers(min(scenes, limit or scenes))), SHARD_SIZE)
        images, labels, parts = self._shards[names[shard]]
        return Example(images[number], labels[number], parts[number], self._complete)


def example_from_scene(scene: Scene, complete: bool = True) -> Example:
    """Return a scene as an example without augmentation; `complete`: see Example."""
    return Example(scene.image, scene.labels, scene.parts, complete)


def augment(
    rng: np.random.Generator, example: Example, size: int, min_crop: float, whole_share: float = 0.4
) -> Example:
    """Crop, resize, rotate, flip and recolour an example at random.

    Args:
        rng: the source of randomness.
        example: the example, which is not modified.
        size: side of the result in pixels.
        min_crop: smallest side of a crop, as a share of the example's side. The logarithm of the share is distributed
            uniformly, so that all scales are equally frequent.
        whole_share: probability that the example is not cropped, 0..1.
    """
    side = example.image.shape[0]
    crop = side if rng.random() < whole_share else int(side * min_crop ** rng.random())
    top, left = (int(n) for n in rng.integers(0, side - crop + 1, 2))
    window = (slice(top, top + crop), slice(left, left + crop))
    cut = resize_example(
        Example(example.image[window], example.labels[window], example.parts[window], example.complete), size
    )
    turns, flip = int(rng.integers(4)), rng.random() < 0.5
    image, labels, parts = (np.rot90(array, turns) for array in (cut.image, cut.labels, cut.parts))
    if flip:
        image, labels, parts = image[:, ::-1], labels[:, ::-1], parts[:, ::-1]
    return Example(
        recolour(rng, np.asarray(image, np.uint8)),
        np.ascontiguousarray(labels),
        np.ascontiguousarray(parts),
        example.complete,
    )


def resize_example(example: Example, size: int) -> Example:
    """Resize an example to another side in pixels.

    The label maps use INTER_NEAREST_EXACT, since INTER_NEAREST would shift them by up to half a pixel.
    """
    smooth = cv2.INTER_AREA if example.image.shape[0] > size else cv2.INTER_LINEAR
    image, labels, parts = (
        np.asarray(cv2.resize(array, (size, size), interpolation=how), np.uint8)
        for array, how in (
            (example.image, smooth),
            (example.labels, cv2.INTER_NEAREST_EXACT),
            (example.parts, cv2.INTER_NEAREST_EXACT),
        )
    )
    return Example(image, labels, parts, example.complete)


def recolour(rng: np.random.Generator, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Change gamma, contrast and brightness at random; sometimes swap the channels, invert them, or make them grey.

    Args:
        rng: the source of randomness.
        image: uint8 (H, W, 3), not modified.

    Returns:
        uint8 (H, W, 3).
    """
    channels = image[..., rng.permutation(3)] if rng.random() < 0.5 else image
    table = np.linspace(0, 1, 256) ** np.exp(rng.normal(0, 0.25))
    if rng.random() < 0.25:
        table = 1 - table
    table = np.clip((table - 0.5) * rng.uniform(0.6, 1.25) + 0.5 + rng.normal(0, 0.06), 0, 1)
    changed: NDArray[np.uint8] = (table * 255 + 0.5).astype(np.uint8)[channels]
    if rng.random() < 0.15:
        grey = (changed @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)
        changed = np.repeat(grey[..., None], 3, axis=2)
    return np.ascontiguousarray(changed)
