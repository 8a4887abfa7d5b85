"""Train the image half of sam2.1_hiera_micro on a GPU, from the embeddings and masks of MobileSAM and from scenes."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._common.extras import missing

try:
    import torch

    from ..export.sam2.recipe import EXPORTER
except ImportError as error:
    raise missing("training needs", "train", error) from error

from ..errors import ConfigurationError
from ..scenes.materials import Materials
from .command import CONFIG, EXIT_INTERRUPTED, flushed_denormals, prepare_device, run_or_resume, stop_signals
from .distil import DistilTrainer, Mix
from .images import Amounts, Images
from .pools import workers
from .schedule import parse_length
from .stages import Stage, View
from .targets import teacher_decoder
from .teacher import SIDE, Teacher, adopt_decoder, fit_projection
from .trainer import Settings

_FITTED = 48  # photographs of the linear regression
_EMBEDDINGS_WEIGHT = 1.5  # of the embeddings' error in the second phase
_WARM_UP = 60

_EPILOG = """\
example, on a GPU with 80 GB:
  triton-sam download mobilesam
  scripts/train_distil.py --teacher checkpoints/mobile_sam.pt --materials runs/materials \\
      --init checkpoints/sam2.1_hiera_micro.pt --out runs/distil --bf16
  scripts/train_memory.py --init runs/distil/masks/sam2.1_hiera_micro.pt --out runs/memory --workers 16 --tracks 16 \\
      --clips 400 --stages 2:0.3m,4:0.5m,8:1.6m --rate 1.5e-3 --measure-every 45

A run draws its images anew each time it starts, which takes 16 cores a minute, and needs 5 MB of the device's memory
and 3 MB of disk for each: 9,100 images with the default numbers. Run the same command again to resume an interrupted
run. The folders embeddings and masks of --out receive the files of each phase: state.pt (for resuming), curves.png,
curves.json and sam2.1_hiera_micro.pt. The memory half does not fit the result, so train it anew.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    options = argparse.ArgumentParser(
        prog="train_distil.py", description=__doc__, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options.add_argument("--teacher", type=Path, required=True, metavar="CHECKPOINT", help="checkpoint of MobileSAM")
    options.add_argument(
        "--materials", type=Path, required=True, metavar="FOLDER",
        help="cut-outs and photographs, from scripts/collect_materials.py",
    )  # fmt: skip
    options.add_argument(
        "--init", type=Path, required=True, metavar="CHECKPOINT", help="weights whose image encoder goes on learning"
    )
    options.add_argument("--out", type=Path, required=True, help="folder of the run; a run that is there is resumed")
    for name, count, what in (
        ("photographs", 4000, "parts of photographs"),
        ("composites", 1300, "composites, each with three views"),
        ("drawn", 400, "drawn scenes, each with three views"),
    ):
        options.add_argument(
            f"--{name}", type=int, default=count, metavar="N", help=f"number of {what} (default: %(default)s)"
        )
    for name, length, what in (("embeddings", "1.75m", "first"), ("masks", "4.4m", "second")):
        options.add_argument(
            f"--{name}", default=length, metavar="LENGTH",
            help=f"length of the {what} phase, in minutes (5m) or steps (600) (default: %(default)s)",
        )  # fmt: skip
    options.add_argument(
        "--rate", type=float, default=1.5e-3, help="peak learning rate of the first phase (default: %(default)s)"
    )
    options.add_argument(
        "--masks-rate", type=float, default=6e-4, help="peak learning rate of the second phase (default: %(default)s)"
    )
    options.add_argument(
        "--images", type=int, default=16, metavar="N",
        help="images of a step of the second phase, half of them photographs; a step of the first phase has half as "
        "many more (default: %(default)s)",
    )  # fmt: skip
    options.add_argument(
        "--prompts", type=int, default=6, metavar="N", help="prompts for each image (default: %(default)s)"
    )
    options.add_argument("--seed", type=int, default=0, help="seed of the choices of images (default: 0)")
    options.add_argument(
        "--workers", type=int, default=0, help="number of processes that draw images (default: one for each core)"
    )
    options.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1, ... (default: cuda if there is one, else cpu)"
    )
    options.add_argument("--bf16", action="store_true", help="compute in bfloat16, which is fast on GPUs")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 130 if the run was interrupted.

    Raises:
        SamError: an option is wrong, or a checkpoint or a saved state cannot be read.
        OSError: a file cannot be written.
    """
    options = parser().parse_args(arguments)
    _check(options)
    device = prepare_device(options.device)
    embeddings = _settings(options, device, "embeddings", options.rate, 0.4)
    masks = _settings(options, device, "masks", options.masks_rate, 0.3)
    Materials(options.materials)  # raises an error now and not in another process
    teacher = Teacher(options.teacher).to(device, options.bf16)
    model = EXPORTER.build(CONFIG, 1024).to(device)
    EXPORTER.restore(model, options.init, CONFIG)
    adopt_decoder(model, teacher)
    options.out.mkdir(parents=True, exist_ok=True)
    with flushed_denormals(), stop_signals() as should_stop, tempfile.TemporaryDirectory(dir=options.out) as folder:
        amounts = Amounts(options.photographs, options.composites, options.drawn)
        images = Images(Path(folder), amounts, device)
        print("drawing images", flush=True)
        with workers(options.workers or os.cpu_count() or 1) as executor:
            filled = images.fill(executor, options.materials, teacher, should_stop)
        if filled:
            _learn(options, model, images, teacher, (embeddings, masks), should_stop)
        if should_stop():
            print("interrupted; the same command resumes", flush=True)
        return EXIT_INTERRUPTED if should_stop() else 0


def _check(options: argparse.Namespace) -> None:
    """Check the numbers among the options.

    Raises:
        ConfigurationError: one is out of range.
    """
    minimums = {"photographs": 1, "composites": 1, "drawn": 1, "images": 2, "prompts": 2, "seed": 0, "workers": 0}
    for name, minimum in minimums.items():
        if getattr(options, name) < minimum:
            raise ConfigurationError(f"--{name} must be at least {minimum}")
    if min(options.rate, options.masks_rate) <= 0:
        raise ConfigurationError("--rate and --masks-rate must be above 0")


def _settings(options: argparse.Namespace, device: str, phase: str, rate: float, hold: float) -> Settings:
    """Return the settings of a phase.

    Raises:
        ConfigurationError: its length has another form.
    """
    length = parse_length(getattr(options, phase))
    if length is None:
        raise ConfigurationError(f"cannot read --{phase} {getattr(options, phase)!r}: write it like 5m or 600")
    stage = Stage(views=(View(SIDE, SIDE),), **length)
    return Settings((stage,), options.seed, "muon", rate, warm_up=_WARM_UP, hold=hold, device=device, bf16=options.bf16)


def _learn(
    options: argparse.Namespace,
    model: Any,
    images: Images,
    teacher: Teacher,
    settings: tuple[Settings, Settings],
    should_stop: Callable[[], bool],
) -> None:
    """Run both phases, each from its saved state if there is one."""
    asked = teacher_decoder(model, teacher)
    torch.manual_seed(options.seed)
    if not (options.out / "embeddings" / "state.pt").is_file():
        error = fit_projection(model, _pairs(images))
        print(f"embeddings: relative error {error:.3f} before the training", flush=True)
    half = options.images // 2
    first = DistilTrainer(model, settings[0], images, Mix(2 * half, half))
    run_or_resume(first, options.out / "embeddings", should_stop)
    if should_stop():
        return
    model.load_state_dict(first.averaged_state(torch.float32))
    mix = Mix(half, options.images - half, options.prompts, _EMBEDDINGS_WEIGHT)
    run_or_resume(DistilTrainer(model, settings[1], images, mix, asked), options.out / "masks", should_stop)


def _pairs(images: Images) -> Any:
    """Yield photographs, uint8 (S, S, 3), and the teacher's embeddings of them, spread over all."""
    pool = images.photographs
    for number in range(0, len(pool), max(1, len(pool) // _FITTED)):
        yield pool.tensors["image"][number], pool.embeddings[number].float()


__all__ = ["main", "parser"]
