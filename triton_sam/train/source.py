"""Where a run's pictures come from: caches that a second process fills while the run draws from them."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ..errors import ConfigurationError
from .dataset import Example, ScenePool, augment, fill_cache
from .stages import View

EASY_SIZE, FULL_SIZE = 256, 512
"""Sides of the cached scenes: easy ones for the stages below 256 px, all sorts for the others."""

_EASY, _FULL = (0.0, 0.5), (0.0, 1.0)
_FIRST_FULL_SEED = 1_000_000
_ZOOM = 1.5
_REFRESH_SECONDS = 60.0


class Source:
    """Draws examples from the caches of a folder and has their missing shards written.

    Without `all_at_once`, the first steps see few scenes, the next ones more and more: what a click means is learned in
    tens of steps on a handful of scenes, and in thousands when every scene is new. `all_at_once` is for weights that
    have learned it.

    Args:
        folder: the caches, made where there are none.
        views: what will be drawn; only the caches that these need are filled and waited for.
        easy: shards of easy scenes.
        full: shards of scenes of all sorts.
        all_at_once: draw from all scenes from the start.
    """

    def __init__(self, folder: Path, views: Iterable[View], easy: int, full: int, all_at_once: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        needed = {size for view in views for size in _sizes(view)}
        self.step: Callable[[], int] = lambda: 0
        self._folder, self._all_at_once = folder, all_at_once
        self._pools = {size: ScenePool(folder, size) for size in sorted(needed)}
        self._looked = time.monotonic()
        self._painter = multiprocessing.get_context("spawn").Process(
            target=_fill,
            args=(folder, easy if EASY_SIZE in needed else 0, full if FULL_SIZE in needed else 0),
            daemon=True,
        )
        self._painter.start()

    def wait(self, for_all: bool, stopped: Callable[[], bool]) -> None:
        """Return when there is something to draw from, or, `for_all`, when every shard is written.

        Raises:
            ConfigurationError: no shards were asked for, or they cannot be written.
        """
        while self._painter.is_alive() and (for_all or not self._ready()):
            if stopped():
                return
            time.sleep(0.2)
        if not self._ready():
            empty = ", ".join(str(size) for size, pool in self._pools.items() if pool.count == 0)
            raise ConfigurationError(
                f"no scenes of {empty} px in {self._folder}, and none are being drawn: give --easy-shards and --shards"
            )

    def close(self) -> None:
        """Stop the process that fills the caches."""
        self._painter.terminate()
        self._painter.join()

    def __call__(self, rng: np.random.Generator, view: View) -> Example:
        """Draw an example for a view."""
        if time.monotonic() - self._looked > _REFRESH_SECONDS:
            self._ready()
            self._looked = time.monotonic()
        if view.frame >= 2 * FULL_SIZE:
            return self._framed(rng, view)
        step = self.step()
        if view.size < EASY_SIZE:
            if self._all_at_once:
                return augment(rng, self._pools[EASY_SIZE].draw(rng), view.size, 0.4)
            variety = 8 + step * step // 125
            return augment(rng, self._pools[EASY_SIZE].draw(rng, variety), view.size, max(0.4, 1 - step / 800))
        easy = view.size < FULL_SIZE and rng.random() < 0.4
        return augment(rng, self._pools[EASY_SIZE if easy else FULL_SIZE].draw(rng), view.size, 0.5)

    def _framed(self, rng: np.random.Generator, view: View) -> Example:
        """Cut a window: at the scale at which the frame shows a scene, up to `_ZOOM` times larger, or smaller."""
        share = view.size / view.frame
        # Up to the whole scene: a large object needs a window that holds it.
        return augment(rng, self._pools[FULL_SIZE].draw(rng), view.size, share / _ZOOM, whole_share=0.15 + 0.35 * share)

    def _ready(self) -> bool:
        """Take in the shards that were written since, and say whether every cache has one."""
        counts = [pool.refresh() for pool in self._pools.values()]  # of every pool, also after an empty one
        return all(counts)


def _sizes(view: View) -> set[int]:
    """Return the sides of the scenes that `Source` draws a view from."""
    if view.frame >= 2 * FULL_SIZE or view.size >= FULL_SIZE:
        return {FULL_SIZE}
    return {EASY_SIZE} if view.size < EASY_SIZE else {EASY_SIZE, FULL_SIZE}


def _fill(folder: Path, easy: int, full: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too; the run ends it when it is done
    fill_cache(folder, 0, easy, EASY_SIZE, _EASY)
    fill_cache(folder, _FIRST_FULL_SEED, full, FULL_SIZE, _FULL)
