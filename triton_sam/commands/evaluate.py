"""Measure how well a served model segments images or tracks objects that are known.

Examples:
  triton-sam evaluate --local
  triton-sam evaluate --url grpc://gpu-host:8001 --name sam2.1_large --dataset coins --dataset my_images --out results
  triton-sam evaluate --local --dataset clips --dataset davis:DAVIS --prompt box

A folder contains NAME.jpg (png, tif, ...) and, for each image, NAME_labels.png (tif) or labels/NAME.png (tif), whose
pixels are integers: 0 for background, another number for each object. docs/how-to/evaluate.md explains the simulated
clicks and each metric. Videos are drawn clips, or a folder with JPEGImages/NAME/*.jpg and Annotations/NAME/*.png, as in
the data set DAVIS; their metrics are J, F and J&F. Ctrl-C stops the command and shows the results so far.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from .._common import strict_json
from .._common.files import atomic_write
from ..client.sync import SAM2TritonClient
from ..errors import ConfigurationError, SamError
from ..families import FAMILIES
from . import _evaluate_videos, _options, _server

if TYPE_CHECKING:
    from ..client.sync import SamTritonClient
    from ..evaluation.datasets import Dataset
    from ..evaluation.report import Report
    from ..evaluation.runner import Settings, Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--dataset",
        action="append",
        metavar="synthetic|coins|cells|DIR|clips|davis:DIR",
        help="images or videos to measure on; repeat the option for more data sets (default: synthetic)",
    )
    parser.add_argument(
        "--clicks", type=int, default=8, metavar="N", help="maximum clicks per object, 1..8 (default: 8)"
    )
    parser.add_argument(
        "--count",
        type=int,
        metavar="N",
        help="maximum number of images or videos (default: 50 synthetic images, 4 clips, else all)",
    )
    parser.add_argument("--objects", type=int, default=32, metavar="N", help="maximum objects per image (default: 32)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")
    parser.add_argument("--no-mask", action="store_true", help="do not send the previous mask with the next click")
    parser.add_argument(
        "--box-jitter",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="also measure boxes whose sides are off by this fraction of the box, for example 0.1",
    )
    parser.add_argument(
        "--prompt",
        choices=("mask", "box", "click"),
        default="mask",
        help="videos: the prompt of each object, in the first frame that shows it (default: mask)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json, iou.png and examples_*.png")
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    _options.add_client(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command. After an interruption or an error, print the results so far and raise it again."""
    from ..evaluation.videos import is_video_dataset

    videos = [name for name in args.dataset or () if is_video_dataset(name)]
    if not videos:
        return _measure_images(args)
    if len(videos) < len(args.dataset):
        raise ConfigurationError("images and videos have different metrics: evaluate them by two commands")
    return _evaluate_videos.run(args, videos)


def _measure_images(args: argparse.Namespace) -> int:
    """Measure data sets of images."""
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
        print(strict_json.dumps(result) if args.json else table(reports))
        if gallery is not None:
            for path in gallery.write(reports, result):
                _options.say(args, f"wrote {path}")
    if stop is not None:
        raise stop
    return 0


def _datasets(args: argparse.Namespace) -> list[Dataset]:
    """Open the data sets and report files that cannot be used."""
    from ..evaluation.datasets import open_dataset

    datasets = [open_dataset(name, args.count, args.seed) for name in args.dataset or ["synthetic"]]
    names = [dataset.name for dataset in datasets]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"each data set needs a name of its own, not {', '.join(names)}: rename a folder")
    for dataset in datasets:
        if dataset.unused:
            files = ", ".join(dataset.unused[:5]) + (", ..." if len(dataset.unused) > 5 else "")
            _options.say(
                args,
                f"{dataset.name}: {len(dataset.unused)} file(s) without a partner or a package left out: {files}",
            )
    return datasets


def _measure(
    client: SamTritonClient, dataset: Dataset, settings: Settings, gallery: _Gallery | None, quiet: bool
) -> tuple[Report, SamError | KeyboardInterrupt | None]:
    """Measure one data set; return the report and the error or interruption that ended it early, if any."""
    from ..evaluation.report import Report
    from ..evaluation.runner import measure

    results, stop = [], None
    with tqdm(total=len(dataset), desc=dataset.name, unit="image", disable=quiet) as bar:
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
    """The folder of --out. It is created, and matplotlib imported, before the measurement starts."""

    def __init__(self, folder: Path, seed: int) -> None:
        from ..evaluation import plots

        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._seed, self._plots = folder, seed, plots
        self._examples: dict[str, plots.Examples] = {}

    def add(self, name: str, trials: Sequence[Trial]) -> None:
        """Offer finished trials of a data set as examples."""
        examples = self._examples.setdefault(name, self._plots.Examples(seed=self._seed))
        for trial in trials:
            examples.add(trial)

    def write(self, reports: Sequence[Report], result: dict[str, Any]) -> list[Path]:
        """Write all files and return their paths."""
        numbers, curve = self._folder / "evaluation.json", self._folder / "iou.png"
        atomic_write(numbers, strict_json.dumps(result, indent=1).encode())
        self._plots.plot(reports, curve)
        sheets = []
        for name, examples in self._examples.items():
            sheets.append(self._folder / f"examples_{name}.png")
            self._plots.contact_sheet(examples.rows, sheets[-1])
        return [numbers, curve, *sheets]
