"""Train sam2.1_hiera_micro on the embeddings and masks of MobileSAM, and on generated scenes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from .._common.extras import missing
from ..errors import ConfigurationError

try:
    import torch

    from ..export.sam2.model import build_model, load_checkpoint
except ImportError as error:
    raise missing("training needs", "train", error) from error

from .command import CONFIG, EXIT_INTERRUPTED, flushed_denormals, run_or_resume, stop_signals
from .distil import EmbeddingTrainer, MaskTrainer
from .lessons import LessonPool, write_lessons
from .source import Composites, SceneSource
from .stages import PROMPTS, parse_stages
from .teacher import SIDE, Teacher, adopt_decoder, fit_projection
from .trainer import Settings

_FITTED = 40  # lessons of the linear regression
_WEIGHTS = "sam2.1_hiera_micro.pt"

_EPILOG = """\
example:
  triton-sam download mobilesam
  scripts/train_distil.py --teacher checkpoints/mobile_sam.pt --materials runs/materials \\
      --init checkpoints/sam2.1_hiera_micro.pt --out runs/distil

Run the same command again to resume an interrupted run. The folder --out receives the lessons (5 MB each), and the
folders embeddings and masks with the files of each phase: state.pt (for resuming), curves.png, curves.json and
sam2.1_hiera_micro.pt. The result is masks/sam2.1_hiera_micro.pt; train its memory half anew
with scripts/train_memory.py.
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
    options.add_argument("--scenes", type=Path, help="folder of the scene cache (default: OUT/scenes)")
    options.add_argument("--lessons", type=int, default=400, help="number of lessons (default: %(default)s)")
    options.add_argument(
        "--embeddings", default="512/1024+512/1024+512/1024+1024:26m,1024:4m", metavar="VIEWS:LENGTH,...",
        help="stages of the first phase, as those of scripts/train_micro.py (default: %(default)s)",
    )  # fmt: skip
    options.add_argument(
        "--masks", default="512/1024+1024:18m", metavar="VIEWS:LENGTH,...",
        help="stages of the second phase (default: %(default)s)",
    )  # fmt: skip
    options.add_argument(
        "--rate", type=float, default=1e-3, help="peak learning rate of the first phase (default: %(default)s)"
    )
    options.add_argument(
        "--masks-rate", type=float, default=3e-4, help="peak learning rate of the second phase (default: %(default)s)"
    )
    options.add_argument(
        "--prompts", type=int, default=PROMPTS, metavar="N", help="prompts for each image (default: %(default)s)"
    )
    options.add_argument("--shards", type=int, default=60, help="number of shards of drawn scenes (default: 60)")
    options.add_argument(
        "--composite-shards", type=int, default=80, help="number of shards with composites (default: 80)"
    )
    options.add_argument(
        "--composite-share", type=float, default=0.6, help="share of the scenes that are composites (default: 0.6)"
    )
    options.add_argument("--seed", type=int, default=0, help="seed of the prompts and of the views (default: 0)")
    options.add_argument("--threads", type=int, default=0, help="number of CPU threads (default: all cores)")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 130 if the run was interrupted.

    Raises:
        SamError: an option is wrong, or a checkpoint or a saved state cannot be read.
        OSError: a file cannot be written.
    """
    options = parser().parse_args(arguments)
    embeddings = _settings(options, options.embeddings, options.rate)
    masks = _settings(options, options.masks, options.masks_rate)
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    teacher = Teacher(options.teacher)
    with flushed_denormals(), stop_signals() as should_stop:
        if _write_lessons(options, teacher, should_stop):
            pool = LessonPool(options.out / "lessons")
            if _learn_embeddings(options, embeddings, teacher, pool, should_stop):
                _learn_masks(options, masks, teacher, pool, should_stop)
        if should_stop():
            print("interrupted; the same command resumes", flush=True)
        return EXIT_INTERRUPTED if should_stop() else 0


def _settings(options: argparse.Namespace, text: str, rate: float) -> Settings:
    """Check the options of a phase and return its settings.

    Raises:
        ConfigurationError: an option is out of range.
    """
    if rate <= 0 or min(options.lessons, options.shards, options.composite_shards) < 1 or options.prompts < 2:
        raise ConfigurationError(
            "--rate and --masks-rate must be above 0, --lessons, --shards and --composite-shards at least 1, and "
            "--prompts at least 2"
        )
    if not 0 < options.composite_share <= 1:
        raise ConfigurationError("--composite-share must be above 0 and at most 1")
    if min(options.seed, options.threads) < 0:
        raise ConfigurationError("--seed and --threads must be at least 0")
    stages = parse_stages(text, options.prompts)
    if any(view.frame != SIDE for stage in stages for view in stage.views):
        raise ConfigurationError(f"lessons have {SIDE} px: give views such as {SIDE}, or windows such as 512/{SIDE}")
    return Settings(stages, options.seed, "muon", rate, warm_up=40, hold=0.25, dense=False)


def _write_lessons(options: argparse.Namespace, teacher: Teacher, should_stop: Callable[[], bool]) -> bool:
    """Write the lessons. Returns False if the run was interrupted."""
    for done in write_lessons(options.out / "lessons", options.materials, teacher, options.lessons):
        if done % 50 == 0 or done == options.lessons:
            print(f"{done} of {options.lessons} lessons", flush=True)
        if should_stop():
            return False
    return True


def _learn_embeddings(
    options: argparse.Namespace,
    settings: Settings,
    teacher: Teacher,
    pool: LessonPool,
    should_stop: Callable[[], bool],
) -> bool:
    """Run the first phase. Returns False if it was interrupted."""
    model = build_model(CONFIG)
    load_checkpoint(model, options.init)
    folder = options.out / "embeddings"
    if not (folder / "state.pt").is_file():
        adopt_decoder(model, teacher)
        error = fit_projection(model, pool.pairs(_FITTED))
        print(f"embeddings: relative error {error:.3f} before the training", flush=True)
    run_or_resume(EmbeddingTrainer(model, settings, pool), folder, should_stop)
    return not should_stop()


def _learn_masks(
    options: argparse.Namespace,
    settings: Settings,
    teacher: Teacher,
    pool: LessonPool,
    should_stop: Callable[[], bool],
) -> None:
    """Run the second phase, from the result of the first."""
    composites = Composites(options.materials, options.composite_shards, options.composite_share)
    views = [view for stage in settings.stages for view in stage.views]
    source = SceneSource(options.scenes or options.out / "scenes", views, 0, options.shards, True, composites)
    try:
        # A phase in steps is repeatable only if all scenes are there from the start.
        source.wait(settings.stages[0].steps is not None, should_stop)
        if not should_stop():
            model = build_model(CONFIG)
            load_checkpoint(model, options.out / "embeddings" / _WEIGHTS)
            trainer = MaskTrainer(model, settings, source, pool, teacher)
            run_or_resume(trainer, options.out / "masks", should_stop)
    finally:
        source.close()


__all__ = ["main", "parser"]
