"""What `scripts/train_micro.py` does: read the options, fill the scene cache in the background, train, plot."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .._common.extras import missing
from ..errors import ConfigurationError

try:
    import torch

    from ..export.sam2.model import build_model, load_checkpoint
except ImportError as error:
    raise missing("training needs", "train", error) from error

from . import network
from .dataset import SHARD
from .optimizer import OPTIMIZERS
from .plot import plot_history
from .source import Source
from .stages import PROMPTS, parse_stages
from .trainer import Settings, Trainer

CONFIG = "sam2.1_hiera_micro.yaml"
EXIT_INTERRUPTED = 130

_EPILOG = """\
examples:
  scripts/train_micro.py --out runs/micro                            # about 90 minutes on 2 CPU cores
  scripts/train_micro.py --out runs/micro --stages 128:500,256:500   # counted in steps: deterministic
  scripts/train_micro.py --out runs/micro --device cuda --bf16       # on a GPU; continues a CPU run as well

The same command again resumes. In --out: state.pt (to resume), sam2.1_hiera_micro.pt (FP16, averaged weights, as the
official checkpoints are laid out), curves.png and curves.json. The scenes of the default options take 5.7 GB on disk
and in memory; fewer shards take less.
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
    options.add_argument(
        "--prompts", type=int, default=PROMPTS, metavar="N",
        help="clicks and boxes a picture, half of each (default: %(default)s; a GPU has room for 16 and more)",
    )  # fmt: skip
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 130 when it was interrupted.

    Raises:
        SamError: an option that cannot work, a checkpoint or a state that cannot be read.
        OSError: a file cannot be written.
    """
    options = parser().parse_args(arguments)
    settings = _settings(options)
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    torch.set_flush_denormal(True)  # sharp attention leaves numbers near 1e-40, each as slow as a hundred others
    options.out.mkdir(parents=True, exist_ok=True)
    views = [view for stage in settings.stages for view in stage.views]
    with _signals() as stopped:
        source = Source(
            options.scenes or options.out / "scenes",
            views,
            options.easy_shards,
            options.shards,
            options.init is not None,
        )
        try:
            _train(options, settings, source, stopped)
        finally:
            source.close()
        if stopped():
            print("interrupted; the same command resumes", flush=True)
        return EXIT_INTERRUPTED if stopped() else 0


def _train(options: argparse.Namespace, settings: Settings, source: Source, stopped: Callable[[], bool]) -> None:
    in_steps = settings.stages[0].steps is not None
    print("drawing scenes" + (", all of them before the first step" if in_steps else ""), flush=True)
    source.wait(in_steps, stopped)  # a step draws from the scenes at hand: that they are complete makes it repeatable
    if stopped():
        return
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
    before = _yield_cores if options.share_cores else None
    trainer.run(_keeper(options.out), options.save_every, before=before, stopped=stopped)


def _settings(options: argparse.Namespace) -> Settings:
    """Check the options.

    Raises:
        ConfigurationError: one that cannot work.
    """
    least = {"seed": 0, "easy_shards": 0, "shards": 0, "threads": 0, "prompts": 2}
    for name, value in least.items():
        if getattr(options, name) < value:
            raise ConfigurationError(f"--{name.replace('_', '-')} must be at least {value}")
    if options.rate <= 0:
        raise ConfigurationError("--rate must be above 0")
    stages = parse_stages(options.stages, options.prompts)
    settings = Settings(
        stages, options.seed, options.optimizer, options.rate, device=_device(options.device), bf16=options.bf16
    )
    return settings if options.init is None else replace(settings, warm_up=50, hold=0.2)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"--device {name} cannot be used here: {reason}") from error
    return name


def _yield_cores() -> None:
    cores = os.cpu_count() or 1
    others = os.getloadavg()[0] - torch.get_num_threads()
    torch.set_num_threads(cores if others < 0.5 * cores else 1)


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Yield what tells whether Ctrl-C or SIGTERM came, so that a run ends between two steps; Ctrl-C again stops it."""
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    earlier = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _keeper(out: Path) -> Callable[[Trainer], None]:
    """Return what writes the run's files."""

    def keep(trainer: Trainer) -> None:
        trainer.save(out / "state.pt")
        trainer.export(out / "sam2.1_hiera_micro.pt")
        plot_history(trainer.progress.history, out / "curves")

    return keep
