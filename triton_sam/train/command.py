"""What `scripts/train_micro.py` does: read the options, fill the scene cache in the background, train, plot."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..export.sam2_model import build_model, load_checkpoint
from . import network
from .dataset import SHARD, Example, ScenePool, augment, fill_cache
from .optimizer import OPTIMIZERS
from .plot import plot_history
from .stages import View, parse_stages
from .trainer import Settings, Trainer

CONFIG = "sam2.1_hiera_micro.yaml"

EASY_SIZE, FULL_SIZE = 256, 512
"""Sides of the cached scenes: easy ones for the stages below 256 px, all sorts for the others."""

_EASY, _FULL = (0.0, 0.5), (0.0, 1.0)
_FIRST_FULL_SEED = 1_000_000
_ZOOM = 1.5
_REFRESH_SECONDS = 60.0

_EPILOG = """\
examples:
  scripts/train_micro.py --out runs/micro                            # about 90 minutes on 2 CPU cores
  scripts/train_micro.py --out runs/micro --stages 128:500,256:500   # counted in steps: deterministic
  scripts/train_micro.py --out runs/micro --device cuda --bf16       # on a GPU; continues a CPU run as well

The same command again resumes. In --out: state.pt (to resume), sam2.1_hiera_micro.pt (FP16, averaged weights, as the
official checkpoints are laid out), curves.png and curves.json.
"""


def parser() -> argparse.ArgumentParser:
    """Describe the options."""
    options = argparse.ArgumentParser(
        prog="train_micro.py", description=__doc__.splitlines()[0] if __doc__ else None, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options.add_argument("--out", type=Path, required=True, help="folder of the run; an existing run is resumed")
    options.add_argument("--scenes", type=Path, help="folder of the scene cache (default: OUT/scenes)")
    options.add_argument(
        "--stages", default="128:20m,256/1024+512/1024+512/1024:50m,512/1024+1024:20m", metavar="VIEWS:LENGTH,...",
        help="stages, each of one view or several (256: pictures of 256 px; 256/1024: windows of 256 px in a frame of "
        "1024 px) and so many minutes (25m) or steps (2000) long (default: %(default)s)",
    )  # fmt: skip
    options.add_argument(
        "--init", type=Path, metavar="CHECKPOINT", help="start a new run from these weights, with a shorter warm-up"
    )
    options.add_argument("--seed", type=int, default=0, help="seed of weights, prompts and augmentation (default: 0)")
    options.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="adamw", help="muon learns faster from --init (default: %(default)s)"
    )
    options.add_argument("--rate", type=float, default=7e-4, help="peak learning rate (default: %(default)s)")
    options.add_argument("--easy-shards", type=int, default=60, help=f"shards of {SHARD} easy scenes (default: 60)")
    options.add_argument("--shards", type=int, default=120, help="shards of scenes of all sorts (default: 120)")
    options.add_argument("--threads", type=int, default=0, help="CPU threads (default: all cores)")
    options.add_argument(
        "--share-cores", action="store_true",
        help="use one thread while other programs are busy: a step waits for its slowest thread",
    )  # fmt: skip
    options.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 (default: cuda where there is one)")
    options.add_argument("--bf16", action="store_true", help="compute in bfloat16; for GPUs, slow on most CPUs")
    options.add_argument("--save-every", type=float, default=120, metavar="SECONDS", help="default: %(default)s")
    return options


def _fill(folder: Path, easy: int, full: int) -> None:
    fill_cache(folder, 0, easy, EASY_SIZE, _EASY)
    fill_cache(folder, _FIRST_FULL_SEED, full, FULL_SIZE, _FULL)


class _Source:
    """Draws examples from the caches; looks for new shards now and then.

    The first steps see few scenes, the next ones more and more: what a click means is learned in tens of steps on a
    handful of scenes, and in thousands when every scene is new. `all_at_once` is for weights that have learned it.
    """

    def __init__(self, folder: Path, all_at_once: bool = False) -> None:
        self._all_at_once = all_at_once
        self.step: Callable[[], int] = lambda: 0
        self._pools = {size: ScenePool(folder, size) for size in (EASY_SIZE, FULL_SIZE)}
        self._looked = time.monotonic()

    def ready(self) -> bool:
        return all(pool.refresh() > 0 for pool in self._pools.values())

    def __call__(self, rng: np.random.Generator, view: View) -> Example:
        if time.monotonic() - self._looked > _REFRESH_SECONDS:
            self.ready()
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = parser().parse_args(arguments)
    settings = _settings(options)
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    torch.set_flush_denormal(True)  # sharp attention leaves numbers near 1e-40, each as slow as a hundred others
    scenes = options.scenes or options.out / "scenes"
    scenes.mkdir(parents=True, exist_ok=True)
    painter = multiprocessing.get_context("spawn").Process(
        target=_fill, args=(scenes, options.easy_shards, options.shards), daemon=True
    )
    painter.start()
    source = _Source(scenes, all_at_once=options.init is not None)
    while not source.ready() and painter.is_alive():
        time.sleep(1)
    torch.manual_seed(settings.seed)
    model = build_model(CONFIG)
    if options.init is None:
        network.prepare(model)
    else:
        load_checkpoint(model, options.init)
    trainer = Trainer(model, settings, source)
    source.step = lambda: trainer.progress.step
    state = options.out / "state.pt"
    if state.is_file():
        trainer.load(state)
        print(f"resuming at step {trainer.progress.step}", flush=True)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        before = _yield_cores if options.share_cores else None
        trainer.run(_keeper(options.out), options.save_every, before=before)
    except KeyboardInterrupt:
        _keeper(options.out)(trainer)
        print("interrupted; the same command resumes", flush=True)


def _settings(options: argparse.Namespace) -> Settings:
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    stages = parse_stages(options.stages)
    settings = Settings(stages, options.seed, options.optimizer, options.rate, device=device, bf16=options.bf16)
    return settings if options.init is None else replace(settings, warm_up=50, hold=0.2)


def _yield_cores() -> None:
    cores = os.cpu_count() or 1
    others = os.getloadavg()[0] - torch.get_num_threads()
    torch.set_num_threads(cores if others < 0.5 * cores else 1)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _keeper(out: Path) -> Callable[[Trainer], None]:
    """Return what writes the run's files."""

    def keep(trainer: Trainer) -> None:
        trainer.save(out / "state.pt")
        trainer.export(out / "sam2.1_hiera_micro.pt")
        plot_history(trainer.progress.history, out / "curves")

    return keep
