"""The source of a run's training examples: caches of scenes, which a second process fills during the run."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ConfigurationError
from .dataset import Example, ScenePool, augment, composite_drawer, fill_cache
from .stages import View

EASY_SIZE, FULL_SIZE = 256, 512
"""Sides in pixels of the easy scenes and of the full scenes, which have every difficulty."""

_EASY_DIFFICULTY, _FULL_DIFFICULTY = (0.0, 0.5), (0.0, 1.0)
_FIRST_FULL_SEED = 1_000_000
_COMPOSITES = "composites"  # subfolder of the cache
_MAX_ZOOM = 1.5  # of a scene in a window, against its scale in the frame
_REFRESH_SECONDS = 60.0


@dataclass(frozen=True)
class Composites:
    """The composites of a run: scenes of `FULL_SIZE` from cut-outs and photographs.

    Attributes:
        materials: folder of the cut-outs and photographs.
        shards: number of shards.
        share: share of the full scenes that are composites, 0..1.
    """

    materials: Path
    shards: int
    share: float


class SceneSource:
    """Draws training examples from the caches of a folder. A second process writes the missing shards.

    By default, the first steps see only a few scenes and later steps see more and more. A model learns the meaning of a
    click in tens of steps on a few scenes, but in thousands of steps if every scene is new. Weights that already know
    it should see all scenes from the start.

    Args:
        folder: folder of the caches, created if needed.
        views: the views that will be drawn. Only the caches that they need are filled.
        easy_shards: number of shards with easy scenes.
        full_shards: number of shards with scenes of every difficulty.
        all_scenes: draw from all scenes from the start.
        composites: the composites that are mixed with the full scenes. None: draw none.

    Raises:
        ConfigurationError: a cache contains held-out scenes, or the folder of the materials has none.
    """

    def __init__(
        self,
        folder: Path,
        views: Iterable[View],
        easy_shards: int,
        full_shards: int,
        all_scenes: bool = False,
        composites: Composites | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        needed = {size for view in views for size in _sizes(view)}
        self.step: Callable[[], int] = lambda: 0
        self._folder, self._all_scenes = folder, all_scenes
        self._pools = {size: ScenePool(folder, size) for size in sorted(needed)}
        if FULL_SIZE not in needed:
            composites = None
        self._composites = composites
        if composites is not None:
            composite_drawer(composites.materials)  # raises an error now and not in the other process
            self._composite_pool = ScenePool(folder / _COMPOSITES, FULL_SIZE, complete=False)
        self._refreshed = time.monotonic()
        self._writer = multiprocessing.get_context("spawn").Process(
            target=_fill_caches,
            args=(
                folder,
                easy_shards if EASY_SIZE in needed else 0,
                full_shards if FULL_SIZE in needed else 0,
                composites,
            ),
            daemon=True,
        )
        self._writer.start()

    def wait(self, for_all: bool, should_stop: Callable[[], bool]) -> None:
        """Wait until every needed cache has a shard.

        Args:
            for_all: wait until every shard is written.
            should_stop: asked while waiting; True ends the wait.

        Raises:
            ConfigurationError: a needed cache is empty, and the process that fills it has ended.
        """
        while self._writer.is_alive() and (for_all or not self._ready()):
            if should_stop():
                return
            time.sleep(0.2)
        if not self._ready():
            empty = ", ".join(str(size) for size, pool in self._pools.items() if pool.count == 0)
            raise ConfigurationError(
                f"there are no scenes of {empty} px in {self._folder} and none are being drawn: give --easy-shards and "
                "--shards"
            )

    def close(self) -> None:
        """Stop the process that fills the caches."""
        self._writer.terminate()
        self._writer.join()

    def __call__(self, rng: np.random.Generator, view: View) -> Example:
        """Draw an example of the size of a view."""
        if time.monotonic() - self._refreshed > _REFRESH_SECONDS:
            self._ready()
            self._refreshed = time.monotonic()
        if view.frame >= 2 * FULL_SIZE:
            return self._draw_window(rng, view)
        step = self.step()
        if view.size < EASY_SIZE:
            if self._all_scenes:
                return augment(rng, self._pools[EASY_SIZE].draw(rng), view.size, 0.4)
            limit = 8 + step * step // 125
            return augment(rng, self._pools[EASY_SIZE].draw(rng, limit), view.size, max(0.4, 1 - step / 800))
        easy = view.size < FULL_SIZE and rng.random() < 0.4
        return augment(rng, self._pools[EASY_SIZE].draw(rng) if easy else self._full(rng), view.size, 0.5)

    def _full(self, rng: np.random.Generator) -> Example:
        """Draw a full scene, which may be a composite."""
        composites = self._composites
        if composites is not None and rng.random() < composites.share:
            return self._composite_pool.draw(rng)
        return self._pools[FULL_SIZE].draw(rng)

    def _draw_window(self, rng: np.random.Generator, view: View) -> Example:
        """Draw a window of a scene, magnified by up to `_MAX_ZOOM` against its scale in the frame, or reduced."""
        share = view.size / view.frame
        # Crops up to the whole scene are allowed, because a large object needs a window that contains it.
        return augment(rng, self._full(rng), view.size, share / _MAX_ZOOM, whole_share=0.15 + 0.35 * share)

    def _ready(self) -> bool:
        """Load the new shards, and return whether every needed cache has a scene."""
        counts = [
            pool.refresh() for pool in self._pools.values()
        ]  # a list, so that an empty pool does not end the loop
        if self._composites is not None:
            counts.append(self._composite_pool.refresh())
        return all(counts)


def _sizes(view: View) -> set[int]:
    """Return the sides of the scenes from which `SceneSource` draws a view."""
    if view.frame >= 2 * FULL_SIZE or view.size >= FULL_SIZE:
        return {FULL_SIZE}
    return {EASY_SIZE} if view.size < EASY_SIZE else {EASY_SIZE, FULL_SIZE}


def _fill_caches(folder: Path, easy_shards: int, full_shards: int, composites: Composites | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too, but the run shall end it
    fill_cache(folder, 0, easy_shards, EASY_SIZE, _EASY_DIFFICULTY)
    fill_cache(folder, _FIRST_FULL_SEED, full_shards, FULL_SIZE, _FULL_DIFFICULTY)
    if composites is not None:
        draw = composite_drawer(composites.materials)
        fill_cache(folder / _COMPOSITES, _FIRST_FULL_SEED, composites.shards, FULL_SIZE, _FULL_DIFFICULTY, draw)
