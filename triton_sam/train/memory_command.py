"""Train the memory half of sam2.1_hiera_micro, which only videos use, on drawn clips."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._common import strict_json
from .._common.extras import missing

try:
    import torch

    from ..export.sam2.recipe import EXPORTER
except ImportError as error:
    raise missing("training needs", "train", error) from error

from .._common.files import atomic_write
from ..errors import ConfigurationError
from ..scenes.clip import FRAMES, generate_clip
from .clip_pool import ClipPool
from .clips import SIDE, ClipStore, map_clip
from .command import CONFIG, EXIT_INTERRUPTED, flushed_denormals, prepare_device, stop_signals
from .memory import prepare_memory
from .memory_trainer import TRACKS, Clips, MemorySettings, MemoryTrainer, parse_clip_stages, track_iou

_HELD_OUT = (500, 501)  # seeds of clips
_FITTED = 6  # clips to which prepare_memory fits the last normalisation

_EPILOG = """\
example:
  scripts/train_memory.py --init checkpoints/sam2.1_hiera_micro.pt --out runs/memory

Run the same command again to resume an interrupted run. The folder --out receives the maps of the clips (24 MB each;
not with --workers), state.pt (for resuming), curves.json and sam2.1_hiera_micro.pt, in which only the memory half and
the head of the object score differ from the checkpoint of --init. They are the weights that were best on held-out
clips.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    options = argparse.ArgumentParser(
        prog="train_memory.py", description=__doc__, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options.add_argument(
        "--init", type=Path, required=True, metavar="CHECKPOINT", help="weights with a trained image half"
    )
    options.add_argument("--out", type=Path, required=True, help="folder of the run; a run that is there is resumed")
    options.add_argument(
        "--stages", default="2:5m,4:15m,7:15m", metavar="FRAMES:LENGTH,...",
        help="stages of the training; each has the number of frames of a track and a length in minutes (5m) or steps "
        "(600) (default: %(default)s)",
    )  # fmt: skip
    options.add_argument(
        "--continue-memory", action="store_true", help="start from the memory half of the checkpoint, too"
    )
    options.add_argument("--seed", type=int, default=0, help="seed of weights, prompts and clips (default: 0)")
    options.add_argument("--rate", type=float, default=1e-3, help="peak learning rate (default: %(default)s)")
    options.add_argument("--clips", type=int, default=300, help="largest number of clips (default: %(default)s)")
    options.add_argument(
        "--tracks", type=int, default=TRACKS, help="number of objects in a step (default: %(default)s)"
    )
    options.add_argument(
        "--workers", type=int, default=0, metavar="N",
        help="for a GPU: let N processes draw all clips before the first step, and keep them in memory",
    )  # fmt: skip
    options.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1, ... (default: cuda if there is one, else cpu)"
    )
    options.add_argument("--threads", type=int, default=1, help="number of CPU threads (default: 1)")
    options.add_argument(
        "--measure-every", type=float, default=240, metavar="SECONDS",
        help="time between two measures on held-out clips (default: %(default)s)",
    )  # fmt: skip
    options.add_argument("--save-every", type=float, default=120, metavar="SECONDS", help="time between two saves")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 130 if the run was interrupted.

    Raises:
        SamError: an option is wrong, or a checkpoint or a saved state cannot be read.
        OSError: a file cannot be written.
    """
    options = parser().parse_args(arguments)
    settings = _settings(options)
    device = prepare_device(options.device)
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    with flushed_denormals(), stop_signals() as should_stop, tempfile.TemporaryDirectory(dir=options.out) as folder:
        torch.manual_seed(settings.seed)
        model: Any = EXPORTER.build(CONFIG, SIDE).to(device)
        fresh = {name: value.clone() for name, value in model.state_dict().items()}
        EXPORTER.restore(model, options.init, CONFIG)
        source = _source(options, model, Path(folder), should_stop)
        if source is not None:
            _train(options, MemoryTrainer(model, settings, source), source, fresh, should_stop)
        if should_stop():
            _say("interrupted; the same command resumes")
        return EXIT_INTERRUPTED if should_stop() else 0


def _settings(options: argparse.Namespace) -> MemorySettings:
    if options.rate <= 0 or min(options.clips, options.tracks, options.threads) < 1:
        raise ConfigurationError("--rate must be above 0, and --clips, --tracks and --threads at least 1")
    if min(options.seed, options.workers) < 0:
        raise ConfigurationError("--seed and --workers must be at least 0")
    stages = parse_clip_stages(options.stages)
    return MemorySettings(stages, options.seed, options.rate, options.clips, options.tracks)


def _source(options: argparse.Namespace, model: Any, folder: Path, should_stop: Callable[[], bool]) -> Clips | None:
    """Return the source of the clips, or None if the run was interrupted while they were drawn."""
    if not options.workers:
        return ClipStore(options.out / "clips", model)
    pool = ClipPool(folder, model, max(options.clips, _FITTED))
    _say("drawing clips")
    return pool if pool.fill(options.workers, should_stop) else None


def _train(
    options: argparse.Namespace,
    trainer: MemoryTrainer,
    source: Clips,
    fresh: dict[str, Any],
    should_stop: Callable[[], bool],
) -> None:
    """Run the training from its saved state, or from fresh weights of the memory half."""
    model, state = trainer.model, options.out / "state.pt"
    if state.is_file():
        trainer.load(state)
        _say(f"resuming at step {trainer.progress.step}")
    elif not options.continue_memory:
        trainer.restart(fresh)
        prepare_memory(model, torch.cat([source.clip(number).embedding[::3] for number in range(_FITTED)]).float())
        trainer.restart(model.state_dict())
    trainer.run(
        lambda run: _save(run, options.out), options.save_every, should_stop, _say,
        _measurer(model), options.measure_every,
    )  # fmt: skip
    if trainer.best is not None and not should_stop():
        _say(f"held-out clips, {FRAMES} frames from one box: best mean IoU {trainer.best.iou:.3f}")


def _measurer(model: Any) -> Callable[[], float]:
    """Return a function that measures the mean IoU of clips that neither training nor the default evaluation shows."""
    held_out = [map_clip(model, generate_clip(seed)) for seed in _HELD_OUT]
    return lambda: float(torch.cat([track_iou(model, clip).flatten() for clip in held_out]).mean())


def _say(line: str) -> None:
    print(line, flush=True)


def _save(trainer: MemoryTrainer, out: Path) -> None:
    trainer.save(out / "state.pt")
    atomic_write(out / "curves.json", strict_json.dumps(trainer.progress.history).encode())
    trainer.export(out / "sam2.1_hiera_micro.pt")
