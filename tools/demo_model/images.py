"""The images for training from a teacher: parts of photographs, and views of composites and drawn scenes.

They contain no held-out materials or scenes. A GPU trains on a hundred images per second, faster than they can be read
or drawn. Other processes therefore draw each image once, into files that are shared with the run, which copies them to
its device.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.demo_model.composites import generate_composite
from tools.demo_model.examples import augment, resize_scene, spread, training_seed
from tools.demo_model.materials import Materials
from tools.demo_model.network import SIDE, Teacher
from triton_sam.errors import ConfigurationError
from triton_sam.scenes.canvas import Scene
from triton_sam.scenes.scenes import generate_scene

_CHUNK = 12  # examples of a task
_EMBEDDED = 8  # images that the teacher embeds at a time

Arrays = Mapping[str, NDArray[np.uint8]]
"""The arrays of an example, by name."""
Draw = Callable[[Path, int], Arrays]
"""A function (folder of the materials, number) that returns the arrays of an example. Processes import it by name."""
Embed = Callable[[Tensor], Tensor]
"""A function that converts images, uint8 (B, S, S, 3), to embeddings (B, C, h, w) on the same device."""


class Pool:
    """Examples on a device, and embeddings of their images.

    Args:
        shapes: the shape of each array of an example; all are uint8.
    """

    def __init__(
        self, folder: Path, draw: Draw, shapes: Mapping[str, tuple[int, ...]], count: int, device: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._draw, self._device, self._count = draw, device, count
        self._paths = {name: str(folder / f"{name}.npy") for name in shapes}
        self._files = {
            name: np.lib.format.open_memmap(path, "w+", np.uint8, (count, *shapes[name]))  # type: ignore[no-untyped-call]
            for name, path in self._paths.items()
        }
        try:
            self.tensors = {
                name: torch.empty((count, *shape), dtype=torch.uint8, device=device) for name, shape in shapes.items()
            }
        except RuntimeError as error:  # includes torch.OutOfMemoryError
            raise ConfigurationError(f"{count} images do not fit into the memory of {device}: draw fewer") from error
        self.embeddings = torch.empty(0, device=device)
        self._tasks: dict[Future[None], range] = {}

    def start(self, executor: Executor, materials: Path) -> None:
        """Draw the examples in the processes of an executor."""
        for first in range(0, self._count, _CHUNK):
            numbers = range(first, min(first + _CHUNK, self._count))
            self._tasks[executor.submit(_draw_chunk, self._draw, materials, self._paths, numbers)] = numbers

    def take(self, embed: Embed | None) -> None:
        """Wait for the examples, copy them to the device and embed their images.

        Args:
            embed: embeds images; None: nothing is embedded.
        """
        for task, numbers in self._tasks.items():
            self._copy(task, slice(numbers.start, numbers.stop))
            if embed is not None:
                self._embed(embed, numbers)
        self._tasks.clear()

    def _copy(self, task: Future[None], part: slice) -> None:
        try:
            task.result()
        except BrokenProcessPool as error:
            raise ConfigurationError(
                "a process that draws images was ended: is there enough memory, and enough room on the disk?"
            ) from error
        for name, tensor in self.tensors.items():
            tensor[part] = torch.from_numpy(np.array(self._files[name][part])).to(self._device)

    def _embed(self, embed: Embed, numbers: range) -> None:
        for first in range(numbers.start, numbers.stop, _EMBEDDED):
            part = slice(first, min(first + _EMBEDDED, numbers.stop))
            found = embed(self.tensors["image"][part])
            if len(self.embeddings) == 0:
                self.embeddings = found.new_empty((self._count, *found.shape[1:]), dtype=torch.float16)
            self.embeddings[part] = found.half()

    def draw(self, rng: np.random.Generator, count: int) -> Tensor:
        """Return the numbers of `count` random examples, int64 (count,)."""
        return torch.from_numpy(rng.integers(self._count, size=count)).to(self._device)

    def __len__(self) -> int:
        return self._count


@contextlib.contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield an executor of `count` processes that draw with one thread each. At the end, it cancels waiting tasks."""
    executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_prepare_worker)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches this process, but the run ends it
    cv2.setNumThreads(1)
    torch.set_num_threads(1)


def _draw_chunk(draw: Draw, materials: Path, paths: Mapping[str, str], numbers: range) -> None:
    """Draw examples into the files."""
    files = {name: np.load(path, mmap_mode="r+") for name, path in paths.items()}
    for number in numbers:
        for name, array in draw(materials, number).items():
            files[name][number] = array


LABEL_SIDE = SIDE // 2
"""Side in pixels of the label maps of scenes, whose images have `network.SIDE`."""

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
def _composite(folder: Path, number: int) -> Scene:
    seed = training_seed(_FIRST_SEED + number)
    return generate_composite(_materials(folder), seed, _SCENE_SIDE, spread(seed))


@lru_cache(1)
def _drawn(number: int) -> Scene:
    seed = training_seed(_FIRST_SEED + number)
    return generate_scene(seed, _SCENE_SIDE, spread(seed))


def _view(number: int, scene: Scene) -> Arrays:
    """Return the arrays of a view of a scene: the whole, or a part."""
    rng = np.random.default_rng([_FIRST_SEED, number])
    view = augment(rng, scene, SIDE, _MIN_CROP, whole_share=float(number % _VIEWS == 0))
    small = resize_scene(view, LABEL_SIDE)
    return {"image": view.image, "labels": small.labels, "parts": small.parts}
