"""The images for training from a teacher: parts of photographs, and views of composites and drawn scenes.

They contain no held-out materials or scenes.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from tools.demo_model.composites import generate_composite
from tools.demo_model.examples import Example, augment, example_from_scene, resize_example, spread, training_seed
from tools.demo_model.materials import Materials
from tools.demo_model.pools import Arrays, Pool
from tools.demo_model.teacher import SIDE, Teacher
from triton_sam.scenes.scenes import generate_scene

LABEL_SIDE = SIDE // 2
"""Side in pixels of the label maps of scenes, whose images have `teacher.SIDE`."""

_SCENE_SIDE = 512  # pixels of a scene before it is enlarged
_VIEWS = 3  # per scene: the whole and two parts
_MIN_CROP = 0.5  # side of a part as a share of the scene's
_FIRST_SEED = 3_000_000
_PHOTOGRAPH = {"image": (SIDE, SIDE, 3)}
_SCENE = {"image": (SIDE, SIDE, 3), "labels": (LABEL_SIDE, LABEL_SIDE), "parts": (LABEL_SIDE, LABEL_SIDE)}


@dataclass(frozen=True)
class Amounts:
    """The numbers of images."""

    photographs: int
    composites: int
    drawn: int


class Images:
    """The images of a run on its device, with the teacher's embeddings."""

    def __init__(self, folder: Path, amounts: Amounts, device: str) -> None:
        self.photographs = Pool(folder / "photographs", draw_photograph, _PHOTOGRAPH, amounts.photographs, device)
        self.composites = Pool(folder / "composites", draw_composite, _SCENE, _VIEWS * amounts.composites, device)
        self.drawn = Pool(folder / "drawn", draw_scene, _SCENE, _VIEWS * amounts.drawn, device)

    def fill(self, executor: Executor, materials: Path, teacher: Teacher) -> None:
        """Draw all images in the processes of an executor, and embed them with the teacher."""
        pools = (self.photographs, self.composites, self.drawn)
        for pool in pools:
            pool.start(executor, materials)
        for pool in pools:
            pool.take(teacher.embed)

    def draw_scenes(self, rng: np.random.Generator) -> Pool:
        """Return the composites or the drawn scenes at random, in proportion to their numbers."""
        share = len(self.drawn) / (len(self.drawn) + len(self.composites))
        return self.drawn if rng.random() < share else self.composites


def draw_photograph(materials: Path, number: int) -> Arrays:
    """Draw a part of a photograph: "image", (1024, 1024, 3)."""
    rng = np.random.default_rng([_FIRST_SEED, number])
    return {"image": _materials(materials).photograph(rng, (SIDE, SIDE))}


def draw_composite(materials: Path, number: int) -> Arrays:
    """Draw a view of a composite: "image", (1024, 1024, 3), "labels" and "parts", both (512, 512)."""
    return _view(number, _composite(materials, number // _VIEWS))


def draw_scene(_folder: Path, number: int) -> Arrays:
    """Draw a view of a drawn scene. The arrays are those of draw_composite."""
    return _view(number, _drawn(number // _VIEWS))


@cache
def _materials(folder: Path) -> Materials:
    return Materials(folder)


@lru_cache(1)  # the views of a scene are consecutive
def _composite(folder: Path, number: int) -> Example:
    seed = training_seed(_FIRST_SEED + number)
    scene = generate_composite(_materials(folder), seed, _SCENE_SIDE, spread(seed))
    return example_from_scene(scene, complete=False)


@lru_cache(1)
def _drawn(number: int) -> Example:
    seed = training_seed(_FIRST_SEED + number)
    scene = generate_scene(seed, _SCENE_SIDE, spread(seed))
    return example_from_scene(scene)


def _view(number: int, example: Example) -> Arrays:
    """Return the arrays of a view of an example: the whole, or a part."""
    rng = np.random.default_rng([_FIRST_SEED, number])
    view = augment(rng, example, SIDE, _MIN_CROP, whole_share=float(number % _VIEWS == 0))
    small = resize_example(view, LABEL_SIDE)
    return {"image": view.image, "labels": small.labels, "parts": small.parts}
