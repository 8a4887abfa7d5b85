"""Train the head of the score of sam2.1_hiera_micro; all other weights stay as they are."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .._common import strict_json
from .._common.extras import missing

try:
    import torch

    from ..export.sam2.recipe import EXPORTER
    from ..export.weights import read_state_dict
except ImportError as error:
    raise missing("training needs", "train", error) from error

from .._common.files import atomic_write
from ..errors import ConfigurationError
from .clips import SIDE
from .command import CONFIG, EXIT_INTERRUPTED, flushed_denormals, stop_signals
from .memory_trainer import speed_up_norms
from .schedule import save
from .score import HEAD, Answers, head_of, join, train_head
from .score_data import Amounts, ScoreData
from .score_measure import measure

_SHARES = (0.125, 0.25, 0.5, 1.0)  # shares of the answers whose heads are measured; the last head is kept

_EPILOG = """\
example:
  scripts/train_score.py --init checkpoints/sam2.1_hiera_micro.pt --out runs/score --materials runs/materials

The model answers prompts on scenes and tracks objects of clips once; the folder --out keeps these answers, and the same
command resumes an interrupted run. The training itself takes a minute. The folder --out also receives
sam2.1_hiera_micro.pt, which differs from the checkpoint of --init by the head of the score alone, and scores.json with
measures on an eighth of the answers, which are not trained on.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    options = argparse.ArgumentParser(
        prog="train_score.py", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--init", type=Path, required=True, metavar="CHECKPOINT", help="weights of the trained model")
    options.add_argument("--out", type=Path, required=True, help="folder of the run; use a new one for other weights")
    options.add_argument(
        "--materials", type=Path, metavar="FOLDER",
        help="also use composites of the cut-outs and photographs in a folder of scripts/collect_materials.py",
    )  # fmt: skip
    options.add_argument(
        "--scenes", type=int, default=480, help="number of drawn scenes, and of composites (default: %(default)s)"
    )
    options.add_argument("--clips", type=int, default=64, help="number of clips (default: %(default)s)")
    options.add_argument("--epochs", type=int, default=15, help="number of times that an answer is shown (default: 15)")
    options.add_argument("--rate", type=float, default=3e-4, help="peak learning rate (default: %(default)s)")
    options.add_argument("--seed", type=int, default=0, help="seed of the order of the answers (default: 0)")
    options.add_argument("--threads", type=int, default=1, help="number of CPU threads (default: 1)")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 130 if the run was interrupted.

    Raises:
        SamError: an option is wrong, or the checkpoint cannot be read.
        OSError: a file cannot be written.
    """
    options = parser().parse_args(arguments)
    if options.rate <= 0 or min(options.scenes, options.clips, options.epochs, options.threads) < 1:
        raise ConfigurationError("--rate must be above 0, and --scenes, --clips, --epochs and --threads at least 1")
    torch.set_num_threads(options.threads)
    model: Any = EXPORTER.build(CONFIG, SIDE)
    EXPORTER.restore(model, options.init, CONFIG)
    speed_up_norms(model)
    amounts = Amounts(options.scenes, options.clips)
    with flushed_denormals(), stop_signals() as should_stop:
        found = ScoreData(options.out / "answers", model, options.materials, amounts).read(_say, should_stop)
    if found is None:
        _say("interrupted; the same command resumes")
        return EXIT_INTERRUPTED
    learned, measured = found
    results = [_result("before", 0, head_of(model), measured)]
    for share in _SHARES:
        head = copy.deepcopy(head_of(model))
        shown = join([_first(part, share) for part in learned.values()])
        train_head(head, shown, options.epochs, options.rate, options.seed)
        results.append(_result(f"{share:.3g} of the answers", len(shown.tokens), head, measured))
    atomic_write(options.out / "scores.json", strict_json.dumps(results, indent=1).encode())
    export(options.init, head, options.out / "sam2.1_hiera_micro.pt")
    return 0


def export(checkpoint: Path, head: torch.nn.Module, path: Path) -> None:
    """Write the weights of a checkpoint with another head of the score; all other tensors stay the same to the bit.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        OSError: the file cannot be written.
    """
    state = dict(read_state_dict(checkpoint, "triton-sam download sam2 tiny"))
    for name, value in head.state_dict().items():
        state[HEAD + name] = value.detach().to(state[HEAD + name].dtype).contiguous()
    save({"model": state}, path)


def _first(answers: Answers, share: float) -> Answers:
    return answers.chosen(torch.arange(round(share * len(answers.tokens))))


def _result(name: str, shown: int, head: torch.nn.Module, measured: dict[str, Answers]) -> dict[str, Any]:
    """Measure a head on all sorts of pictures, print a line for each, and return the measures."""
    found = {sort: asdict(measure(head, answers)) for sort, answers in measured.items() if len(answers.tokens)}
    for sort, quality in found.items():
        _say(f"{name}, {sort}: " + ", ".join(f"{key} {value:.3f}" for key, value in quality.items() if value == value))
    return {"name": name, "answers": shown, "measures": found}


def _say(line: str) -> None:
    print(line, flush=True)
