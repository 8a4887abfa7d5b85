"""Lessons: images with the teacher's embeddings, in a folder, since the teacher is slower than the model that learns.

Lessons show parts of photographs at every scale, and composites. No lesson shows a photograph or cut-out that is held
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._common.files import atomic_path
from .._common.npz import write_npz
from ..errors import ConfigurationError
from ..scenes.composites import generate_composite
from ..scenes.materials import Materials, Pixels
from .network import STRIDE, Window
from .teacher import SIDE, Teacher

_FIRST_SEED = 2_000_000  # of composites; train.source begins at another seed
_COMPOSITE_SIZE = 512  # pixels; enlarged, like most photographs of the web in an image of 1024 px
_CACHED = 2000  # lessons in memory, 5 MB each


@dataclass(frozen=True)
class Lessons:
    """The images of a training step, and the teacher's embeddings of them.

    Attributes:
        images: uint8 (B, S, S, 3), RGB, windows of the lessons.
        embeddings: float32 (B, 256, S/16, S/16), the windows of the teacher's embeddings of the whole images.
        whole: float32 (B, 256, F/16, F/16), the embeddings of the whole images of side F, mirrored like the windows.
    """

    images: Tensor
    embeddings: Tensor
    whole: Tensor


def write_lessons(folder: Path, materials: Path, teacher: Teacher, count: int) -> Iterator[int]:
    """Write the lessons that a folder lacks: photographs and composites by turns.

    Args:
        folder: the folder, created if needed.
        materials: folder of scripts/collect_materials.py.
        teacher: the teacher.
        count: number of lessons.

    Yields:
        The number of lessons that are there.

    Raises:
        ConfigurationError: the folder of the materials has no manifest, or no material that is not held out.
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = Materials(materials)
    for number in range(count):
        path = folder / f"{number:06d}.npz"
        if not path.exists():
            image = _draw(source, number)
            embedding = teacher.embed(torch.from_numpy(image)[None])[0].half().numpy()
            with atomic_path(path) as partial, partial.open("wb") as stream:
                write_npz(stream, {"image": image, "embedding": embedding})
        yield number + 1


def _draw(materials: Materials, number: int) -> Pixels:
    """Draw the image of a lesson: uint8 (1024, 1024, 3), RGB."""
    rng = np.random.default_rng([_FIRST_SEED, number])
    if number % 2 == 0:
        return materials.photograph(rng, (SIDE, SIDE))
    scene = generate_composite(materials, _FIRST_SEED + number, _COMPOSITE_SIZE, float(rng.random()))
    return np.asarray(cv2.resize(scene.image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR), np.uint8)


class LessonPool:
    """The lessons of a folder.

    Args:
        folder: the folder.

    Raises:
        ConfigurationError: there is no lesson in it.
    """

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*.npz"))
        if not self._files:
            raise ConfigurationError(f"there are no lessons in {folder}")
        self._read = lru_cache(_CACHED)(_read)  # on a method it would keep the pool alive for ever

    def pairs(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images, uint8 (F, F, 3), and embeddings, float32 (256, F/16, F/16), spread over the lessons."""
        for path in self._files[:: max(1, len(self._files) // count)][:count]:
            image, embedding = self._read(path)
            yield torch.from_numpy(image), torch.from_numpy(embedding).float()

    def draw(self, rng: np.random.Generator, window: Window, count: int) -> Lessons:
        """Draw lessons; half of the draws are mirrored.

        Args:
            rng: the source of randomness.
            window: the part of the images; its frame must be their side.
            count: number of lessons B.
        """
        mirrored = rng.random() < 0.5
        left = window.frame - window.side - window.left if mirrored else window.left
        chosen = [self._read(self._files[int(index)]) for index in rng.integers(len(self._files), size=count)]
        rows, columns = (slice(start, start + window.side) for start in (window.top, left))
        images = torch.from_numpy(np.stack([image[rows, columns] for image, _ in chosen]))
        whole = torch.from_numpy(np.stack([embedding for _, embedding in chosen])).float()
        if mirrored:
            images, whole = images.flip(2), whole.flip(3)
        return Lessons(images, window.cut(whole, STRIDE), whole)


def _read(path: Path) -> tuple[Pixels, NDArray[np.float16]]:
    with np.load(path) as content:
        return content["image"], content["embedding"]
