"""Train the default model sam2.1_hiera_micro on generated scenes, which a second process draws meanwhile."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from .._common.extras import missing
from ..errors import ConfigurationError

try:
    import torch

    from ..export.sam2.recipe import EXPORTER
except ImportError as error:
    raise missing("training needs", "train", error) from error

from . import network
from .dataset import SHARD_SIZE
from .optimizer import OPTIMIZERS
from .plot import plot_history
from .source import Composites, SceneSource
from .stages import PROMPTS, parse_stages
from .trainer import Settings, Trainer

CONFIG = "sam2.1_hiera_micro.yaml"
EXIT_INTERRUPTED = 130

_EPILOG = """\
examples:
  scripts/train_micro.py --out runs/micro                            # takes about 90 minutes on 2 CPU cores
  scripts/train_micro.py --out runs/micro --stages 128:500,256:500   # stages in steps: deterministic
  scripts/train_micro.py --out runs/micro --device cuda --bf16       # on a GPU; also resumes a run of a CPU
  scripts/train_micro.py --out runs/micro --materials runs/materials # also on cut-outs over photographs

Run the same command again to resume an interrupted run. The folder --out receives state.pt (for resuming),
sam2.1_hiera_micro.pt (averaged weights in FP16, in the layout of the official checkpoints), curves.png and curves.json.
The scenes of the default options need 5.7 GB on disk and in memory; fewer shards need less.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    options = argparse.ArgumentParser(
        prog="train_micro.py", description=__doc__.splitlines()[0] if __doc__ else None, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options.add_argument(
        "--out", type=Path, required=True, help="folder of the run; a run that is already there is resumed"
    )
    options.add_argument("--scenes", type=Path, help="folder of the scene cache (default: OUT/scenes)")
    options.add_argument(
        "--stages", default="128:20m,256/1024+512/1024+512/1024:50m,512/1024+1024:20m", metavar="VIEWS:LENGTH,...",
        help="stages of the training; each has one or several views (256: images of 256 px; 256/1024: windows of 256 "
        "px in a frame of 1024 px) and a length in minutes (25m) or steps (2000) (default: %(default)s)",
    )  # fmt: skip
    options.add_argument(
        "--init",
        type=Path,
        metavar="CHECKPOINT",
        help="start a new run from the weights of this file, with a shorter warm-up",
    )
    options.add_argument(
        "--seed", type=int, default=0, help="seed of the initial weights, the prompts and the augmentation (default: 0)"
    )
    options.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        default="adamw",
        help="muon learns faster in runs with --init (default: %(default)s)",
    )
    options.add_argument(
        "--prompts", type=int, default=PROMPTS, metavar="N",
        help="prompts for each image, half clicks and half boxes (default: %(default)s; a GPU has room for 16)",
    )  # fmt: skip
    options.add_argument("--rate", type=float, default=7e-4, help="peak learning rate (default: %(default)s)")
    options.add_argument(
        "--easy-shards",
        type=int,
        default=60,
        help=f"number of shards, each with {SHARD_SIZE} easy scenes (default: 60)",
    )
    options.add_argument(
        "--shards", type=int, default=120, help="number of shards with scenes of every difficulty (default: 120)"
    )
    options.add_argument(
        "--materials", type=Path, metavar="FOLDER",
        help="also train on composites of the cut-outs and photographs in a folder of scripts/collect_materials.py",
    )  # fmt: skip
    options.add_argument(
        "--composite-shards", type=int, default=80, help="number of shards with composites (default: 80)"
    )
    options.add_argument(
        "--composite-share", type=float, default=0.6,
        help="share of the scenes of 512 px that are composites (default: %(default)s)",
    )  # fmt: skip
    options.add_argument("--threads", type=int, default=0, help="number of CPU threads (default: all cores)")
    options.add_argument(
        "--share-cores", action="store_true",
        help="use one thread while other programs are busy, because a step waits for its slowest thread",
    )  # fmt: skip
    options.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1, ... (default: cuda if there is one, else cpu)"
    )
    options.add_argument(
        "--bf16", action="store_true", help="compute in bfloat16, which is fast on GPUs and slow on most CPUs"
    )
    options.add_argument(
        "--save-every",
        type=float,
        default=120,
        metavar="SECONDS",
        help="time between two saves of the run's files (default: %(default)s)",
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 130 if the run was interrupted.

    Raises:
        SamError: an option is wrong, or a checkpoint or a saved state cannot be read.
        OSError: a file cannot be written.
    """
    options = parser().parse_args(arguments)
    settings = _settings(options)
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    options.out.mkdir(parents=True, exist_ok=True)
    views = [view for stage in settings.stages for view in stage.views]
    with flushed_denormals(), stop_signals() as should_stop:
        source = SceneSource(
            options.scenes or options.out / "scenes",
            views,
            options.easy_shards,
            options.shards,
            options.init is not None,
            _composites(options),
        )
        try:
            _train(options, settings, source, should_stop)
        finally:
            source.close()
        if should_stop():
            print("interrupted; the same command resumes", flush=True)
        return EXIT_INTERRUPTED if should_stop() else 0


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Count denormal numbers as zero: sharp attention produces them, and they are a hundred times slower."""
    for kind in (np.float32, np.float64):
        np.finfo(kind)  # NumPy remembers the limits, and warns if it looks for them later
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _train(
    options: argparse.Namespace, settings: Settings, source: SceneSource, should_stop: Callable[[], bool]
) -> None:
    in_steps = settings.stages[0].steps is not None
    print("drawing scenes" + (", all of them before the first step" if in_steps else ""), flush=True)
    # A step draws from the available scenes, so a run is repeatable only if all of them are there from the start.
    source.wait(in_steps, should_stop)
    if should_stop():
        return
    torch.manual_seed(settings.seed)
    model = EXPORTER.build(CONFIG, 1024)
    if options.init is None:
        network.prepare(model)
    else:
        EXPORTER.restore(model, options.init, CONFIG)
    trainer = Trainer(model, settings, source)
    source.step = lambda: trainer.progress.step
    before_step = _set_threads_by_load if options.share_cores else None
    run_or_resume(trainer, options.out, should_stop, options.save_every, before_step)


def run_or_resume(
    trainer: Trainer,
    out: Path,
    should_stop: Callable[[], bool],
    save_seconds: float = 120.0,
    before_step: Callable[[], None] | None = None,
) -> None:
    """Run the training of a folder, from its saved state if it has one; the arguments are those of Trainer.run."""
    state = out / "state.pt"
    if state.is_file():
        trainer.load(state)
        print(f"resuming at step {trainer.progress.step}", flush=True)
    trainer.run(_save_function(out), save_seconds, before_step=before_step, should_stop=should_stop)


def _settings(options: argparse.Namespace) -> Settings:
    """Check the options and return the settings of the run.

    Raises:
        ConfigurationError: an option is out of range or cannot be used on this machine.
    """
    minimums = {"seed": 0, "easy_shards": 0, "shards": 0, "threads": 0, "prompts": 2}
    for name, minimum in minimums.items():
        if getattr(options, name) < minimum:
            raise ConfigurationError(f"--{name.replace('_', '-')} must be at least {minimum}")
    if options.rate <= 0:
        raise ConfigurationError("--rate must be above 0")
    stages = parse_stages(options.stages, options.prompts)
    settings = Settings(
        stages, options.seed, options.optimizer, options.rate, device=prepare_device(options.device), bf16=options.bf16
    )
    return settings if options.init is None else replace(settings, warm_up=50, hold=0.2)


def _composites(options: argparse.Namespace) -> Composites | None:
    if options.materials is None:
        return None
    if options.composite_shards < 1 or not 0 < options.composite_share <= 1:
        raise ConfigurationError("--composite-shards must be at least 1, and --composite-share above 0 and at most 1")
    return Composites(options.materials, options.composite_shards, options.composite_share)


def prepare_device(name: str) -> str:
    """Return the device that --device names, "auto" for the best one, and let GPUs multiply in TF32.

    Raises:
        ConfigurationError: the device cannot be used.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"--device {name} cannot be used on this machine: {reason}") from error
    return name


def _set_threads_by_load() -> None:
    """Use one thread while other programs keep more than half of the cores busy, else one for each core."""
    cores = os.cpu_count() or 1
    load_of_others = os.getloadavg()[0] - torch.get_num_threads()
    torch.set_num_threads(cores if load_of_others < 0.5 * cores else 1)


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C or SIGTERM arrived, so that a run can end between two steps.

    A second Ctrl-C ends the program at once.
    """
    received: list[int] = []

    def remember(number: int, _frame: object) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _save_function(out: Path) -> Callable[[Trainer], None]:
    """Return a function that writes the files of a run to a folder."""

    def save(trainer: Trainer) -> None:
        trainer.save(out / "state.pt")
        trainer.export(out / "sam2.1_hiera_micro.pt")
        plot_history(trainer.progress.history, out / "curves")

    return save
