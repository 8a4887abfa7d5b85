"""Measure how well a served model segments: simulated clicks and boxes on pictures whose objects are known.

Examples:
  triton-sam evaluate --local
  triton-sam evaluate --url grpc://gpu-host:8001 --name sam2.1_large --dataset coins --dataset my_images --out results

A folder holds NAME.jpg (png, tif, ...) with NAME_labels.png (tif) beside it or labels/NAME.png (tif): integers, 0 is
background. docs/how-to/evaluate.md says how clicks are simulated and what each metric means. Ctrl-C stops and shows the
results so far.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from .._common.files import atomic_write
from ..client.sync import SAM2TritonClient
from ..errors import ConfigurationError, SamError
from ..families import FAMILIES
from . import _options, _server

if TYPE_CHECKING:
    from ..client.segmenter import Segmenter
    from ..evaluation.report import Report
    from ..evaluation.runner import Settings, Trial
    from ..evaluation.samples import Dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--dataset",
        action="append",
        metavar="synthetic|coins|cells|DIR",
        help="pictures to measure on; repeat for more columns (default: synthetic)",
    )
    parser.add_argument("--clicks", type=int, default=8, metavar="N", help="most clicks an object, 1..8 (default: 8)")
    parser.add_argument("--count", type=int, metavar="N", help="most pictures (default: 50 synthetic ones, else all)")
    parser.add_argument("--objects", type=int, default=32, metavar="N", help="most objects of a picture (default: 32)")
    parser.add_argument("--seed", type=int, default=0, help="for everything that is drawn at random (default: 0)")
    parser.add_argument("--no-mask", action="store_true", help="do not hand the last mask to the next round of clicks")
    parser.add_argument(
        "--box-jitter",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="also try boxes whose sides are off by this share of the box, for example 0.1",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json, iou.png and examples_*.png")
    parser.add_argument("--json", action="store_true", help="print everything that was measured as JSON")
    _options.add_client(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command. What was measured before an interruption or an error is printed before that is passed on."""
    from ..evaluation.report import table, to_json
    from ..evaluation.runner import Settings

    feed_mask = FAMILIES[args.model].takes_mask and not args.no_mask
    settings = Settings(args.clicks, feed_mask, args.box_jitter, args.objects, args.seed)
    datasets = _datasets(args)
    gallery = _Gallery(args.out, args.seed) if args.out else None
    reports: list[Report] = []
    stop: SamError | KeyboardInterrupt | None = None
    with (
        _server.server_urls(args) as urls,
        SAM2TritonClient(
            urls[0], args.model, model_name=args.name, timeout=args.timeout, **_options.access(args)
        ) as client,
    ):
        about = {"url": client.url, "model": args.model, "name": args.name}
        for dataset in datasets:
            report, stop = _measure(client, dataset, settings, gallery, quiet=args.quiet)
            reports += [report] if report.objects else []
            if stop is not None:
                break
    if reports:
        result = to_json(reports, settings, about)
        print(json.dumps(result) if args.json else table(reports))
        if gallery is not None:
            for path in gallery.write(reports, result):
                _options.say(args, f"wrote {path}")
    if stop is not None:
        raise stop
    return 0


def _datasets(args: argparse.Namespace) -> list[Dataset]:
    """Open the data sets and say which files are of no use."""
    from ..evaluation.datasets import open_dataset

    datasets = [open_dataset(name, args.count, args.seed) for name in args.dataset or ["synthetic"]]
    names = [dataset.name for dataset in datasets]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"each data set needs a name of its own, not {', '.join(names)}: rename a folder")
    for dataset in datasets:
        if dataset.unused:
            files = ", ".join(dataset.unused[:5]) + (", ..." if len(dataset.unused) > 5 else "")
            _options.say(args, f"{dataset.name}: {len(dataset.unused)} file(s) without a partner left out: {files}")
    return datasets


def _measure(
    client: Segmenter, dataset: Dataset, settings: Settings, gallery: _Gallery | None, quiet: bool
) -> tuple[Report, SamError | KeyboardInterrupt | None]:
    """Measure one data set. Returns the report, and what stopped the measurement before its end."""
    from ..evaluation.report import Report
    from ..evaluation.runner import measure

    results, stop = [], None
    with tqdm(total=len(dataset), desc=dataset.name, unit="picture", disable=quiet) as bar:
        try:
            for finished, trials in measure(client, dataset, settings):
                results += [trial.result() for trial in trials]
                if gallery is not None:
                    gallery.add(dataset.name, trials)
                bar.set_postfix(objects=len(results), refresh=False)
                bar.update(finished - bar.n)
        except (SamError, KeyboardInterrupt) as error:
            stop = error
    return Report(dataset, tuple(results), complete=stop is None), stop


class _Gallery:
    """The folder for --out: made, and matplotlib looked for, before anything is measured."""

    def __init__(self, folder: Path, seed: int) -> None:
        from ..evaluation import photographs as pictures

        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._seed, self._pictures = folder, seed, pictures
        self._examples: dict[str, pictures.Examples] = {}

    def add(self, name: str, trials: Sequence[Trial]) -> None:
        """Offer finished trials of a data set as examples."""
        examples = self._examples.setdefault(name, self._pictures.Examples(seed=self._seed))
        for trial in trials:
            examples.add(trial)

    def write(self, reports: Sequence[Report], result: dict[str, Any]) -> list[Path]:
        """Write all files and return their paths."""
        numbers, curve = self._folder / "evaluation.json", self._folder / "iou.png"
        atomic_write(numbers, json.dumps(result, indent=1).encode())
        self._pictures.plot(reports, curve)
        sheets = []
        for name, examples in self._examples.items():
            sheets.append(self._folder / f"examples_{name}.png")
            self._pictures.contact_sheet(examples.rows, sheets[-1])
        return [numbers, curve, *sheets]
