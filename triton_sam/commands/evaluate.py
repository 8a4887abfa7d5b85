"""Measure how well a served model segments images or tracks objects, against ground truth.

Examples:
  triton-sam evaluate images --local
  triton-sam evaluate images --url grpc://gpu-host:8001 --name sam2.1_large --dataset coins --dataset my_images
  triton-sam evaluate videos --local --dataset clips --dataset davis:DAVIS --prompt box

A folder contains NAME.jpg (png, tif, ...) and, for each image, NAME_labels.png (tif) or labels/NAME.png (tif), whose
pixels are integers: 0 for background, another number for each object. docs/how-to/evaluate.md explains the simulated
clicks and each metric. Videos are drawn clips, or a folder with JPEGImages/NAME/*.jpg and Annotations/NAME/*.png, as in
the data set DAVIS; their metrics are J, F and J&F. Ctrl-C stops the command and shows the results so far.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from .._common import strict_json
from .._common.files import atomic_write
from .._common.signals import signals_ignored
from ..errors import ConfigurationError, InputError, SamError
from ..families import FAMILIES, tracking_families
from . import _options, _server, _video
from ._parser import Parser

if TYPE_CHECKING:
    from ..client.sync import SamTritonClient
    from ..evaluation.datasets import Dataset, VideoDataset
    from ..evaluation.runner import EvaluationSettings, Report, Trial
    from ..evaluation.video_runner import VideoReport, VideoSettings

Known = TypeVar("Known", "Dataset", "VideoDataset")
Measured = TypeVar("Measured", "Report", "VideoReport")
Stop = SamError | KeyboardInterrupt | None
"""The error or interruption that ended a measurement early, if any."""


def add_arguments(parser: Parser) -> None:
    parser.rewrite = _with_task
    tasks = parser.add_subparsers(metavar="TASK", dest="task", required=True)

    images = parser.add_task(tasks, "images", "simulate clicks and boxes on images with ground truth")
    _add_datasets(images, "synthetic", "synthetic|coins|cells|DIR", "images (default: 50 synthetic ones, else all)")
    _options.add_client(images)
    _options.add_quiet(images)
    images.add_argument(
        "--clicks", type=int, default=8, metavar="N", help="maximum clicks per object, 1..8 (default: 8)"
    )
    images.add_argument("--no-mask", action="store_true", help="do not send the previous mask with the next click")
    images.add_argument(
        "--box-jitter",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="also measure boxes whose sides are off by this fraction of the box, for example 0.1",
    )

    videos = parser.add_task(tasks, "videos", "track objects through videos with ground truth")
    _add_datasets(videos, "clips", "clips|davis:DIR", "videos (default: 4 clips, else all)")
    _options.add_client(videos, families=tracking_families())
    _options.add_quiet(videos)
    videos.add_argument(
        "--prompt",
        choices=("mask", "box", "click"),
        default="mask",
        help="the prompt of each object, in the first frame that shows it (default: mask)",
    )


def _add_datasets(task: Parser, default: str, names: str, counted: str) -> None:
    """Add the options of both subcommands."""
    task.add_argument(
        "--dataset",
        action="append",
        metavar=names,
        help=f"repeat the option to measure on several data sets (default: {default})",
    )
    task.add_argument("--count", type=int, metavar="N", help=f"maximum number of {counted}")
    task.add_argument("--objects", type=int, default=32, metavar="N", help="maximum objects of each (default: 32)")
    task.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")
    task.add_argument("--out", type=Path, metavar="DIR", help="also write the results into this folder")
    task.add_argument("--json", action="store_true", help="print all results as JSON")


def _with_task(arguments: Sequence[str]) -> list[str]:
    """Insert the task that the first spelling of the command lacked."""
    from ..evaluation.datasets import is_video_dataset

    given = list(arguments)
    if given[:1] and (given[0] in ("-h", "--help") or not given[0].startswith("-")):
        return given
    datasets = [word.partition("=")[2] for word in given if word.startswith("--dataset=")]
    datasets += [name for word, name in itertools.pairwise(given) if word == "--dataset"]
    return ["videos" if datasets and all(map(is_video_dataset, datasets)) else "images", *given]


def run(args: argparse.Namespace) -> int:
    """Run the command. After an interruption or an error, print the results so far and re-raise."""
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    stop = _measure_images(args) if args.task == "images" else _measure_videos(args)
    if stop is not None:
        raise stop
    return 0


def _measure_images(args: argparse.Namespace) -> Stop:
    from ..evaluation.runner import EvaluationSettings, table, to_json

    feed_mask = FAMILIES[args.model].takes_mask and not args.no_mask
    settings = EvaluationSettings(args.clicks, feed_mask, args.box_jitter, args.objects, args.seed)
    datasets = _images(args)
    gallery = _Gallery(args.out, args.seed) if args.out else None
    with _server.connected(args) as client:
        about = {"url": client.url, "model": args.model, "name": args.name}
        reports, stop = _measure_all(
            datasets, lambda dataset: _measure(client, dataset, settings, gallery, quiet=args.quiet)
        )
        with signals_ignored():  # a second Ctrl-C must not lose the results that the first one left
            if reports:
                _report(args, table(reports), "evaluation.json", to_json(reports, settings, about))
                for path in gallery.write(reports) if gallery is not None else ():
                    _options.say(args, f"wrote {path}")
    return stop


def _measure_videos(args: argparse.Namespace) -> Stop:
    from ..evaluation.datasets import open_videos
    from ..evaluation.video_runner import VideoSettings, video_table, videos_to_json

    settings = VideoSettings(args.prompt, args.objects)
    datasets = _with_own_names([open_videos(name, args.count, args.seed) for name in args.dataset or ["clips"]])
    with (
        _server.server_urls(args) as urls,
        _video.make_client(urls[0], args.name, args.timeout, _options.access(args), args.model) as client,
    ):
        reports, stop = _measure_all(
            datasets, lambda dataset: _measure_tracks(client, dataset, settings, quiet=args.quiet)
        )
        with signals_ignored():  # as in _measure_images()
            if reports:
                about = {"url": urls[0], "model": args.model, "name": args.name}
                result = {"server": about, **videos_to_json(reports, settings)}
                _report(args, video_table(reports), "videos.json", result)
    return stop


def _images(args: argparse.Namespace) -> list[Dataset]:
    """Open the data sets and report unusable files."""
    from ..evaluation.datasets import is_video_dataset, open_dataset

    names = args.dataset or ["synthetic"]
    if any(map(is_video_dataset, names)):
        raise ConfigurationError(
            "images and videos have different metrics: evaluate them by two commands, `evaluate images` and "
            "`evaluate videos`"
        )
    datasets = _with_own_names([open_dataset(name, args.count, args.seed) for name in names])
    for dataset in datasets:
        if dataset.unused:
            files = ", ".join(dataset.unused[:5]) + (", ..." if len(dataset.unused) > 5 else "")
            _options.say(
                args,
                f"{dataset.name}: {len(dataset.unused)} file(s) without a partner or a package left out: {files}",
            )
    return datasets


def _with_own_names(datasets: list[Known]) -> list[Known]:
    names = [dataset.name for dataset in datasets]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"each data set needs a name of its own, not {', '.join(names)}: rename a folder")
    return datasets


def _measure_all(
    datasets: Sequence[Known], measure: Callable[[Known], tuple[Measured | None, Stop]]
) -> tuple[list[Measured], Stop]:
    """Measure data sets until a measurement is stopped. Data sets without results are left out."""
    reports: list[Measured] = []
    for dataset in datasets:
        report, stop = measure(dataset)
        if report is not None:
            reports.append(report)
        if stop is not None:
            return reports, stop
    return reports, None


def _measure(
    client: SamTritonClient, dataset: Dataset, settings: EvaluationSettings, gallery: _Gallery | None, quiet: bool
) -> tuple[Report | None, Stop]:
    from ..evaluation.runner import Report, measure

    results = []
    stop: Stop = None
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
    return Report(dataset, tuple(results), complete=stop is None) if results else None, stop


def _measure_tracks(
    client: Any, dataset: VideoDataset, settings: VideoSettings, quiet: bool
) -> tuple[VideoReport | None, Stop]:
    from ..evaluation.video_runner import VideoReport, measure_video

    results = []
    stop: Stop = None
    left_out: Stop = None
    with tqdm(desc=dataset.name, unit="frame", disable=quiet) as bar:
        try:
            for number, (name, load) in enumerate(dataset.loaders, start=1):
                bar.set_postfix_str(f"video {number} of {len(dataset.loaders)}: {name}", refresh=False)
                try:
                    results += measure_video(
                        lambda images: _video.opened(client, images), load(), settings, lambda *_: bar.update()
                    )
                except InputError as error:
                    left_out = error
                    bar.write(f"{name} is left out: {error}", file=sys.stderr)
        except (SamError, KeyboardInterrupt) as error:
            stop = error
    if not results and stop is None:
        stop = left_out
    is_complete = stop is None and left_out is None
    return VideoReport(dataset, tuple(results), is_complete) if results else None, stop


def _report(args: argparse.Namespace, table: str, name: str, result: dict[str, Any]) -> None:
    """Print the results as a table or as JSON, and write the JSON with a name into the folder of --out."""
    print(strict_json.dumps(result) if args.json else table)
    if args.out is not None:
        path: Path = args.out / name
        atomic_write(path, strict_json.dumps(result, indent=1).encode())
        _options.say(args, f"wrote {path}")


class _Gallery:
    """Writes the images into the folder of --out. Matplotlib is imported before the measurement starts."""

    def __init__(self, folder: Path, seed: int) -> None:
        from ..evaluation import plots

        self._folder, self._seed, self._plots = folder, seed, plots
        self._examples: dict[str, plots.Examples] = {}

    def add(self, name: str, trials: Sequence[Trial]) -> None:
        """Add finished trials of a data set as candidates for examples."""
        examples = self._examples.setdefault(name, self._plots.Examples(self._seed))
        for trial in trials:
            examples.add(trial)

    def write(self, reports: Sequence[Report]) -> list[Path]:
        curve = self._folder / "iou.png"
        self._plots.plot(reports, curve)
        sheets = []
        for name, examples in self._examples.items():
            sheets.append(self._folder / f"examples_{name}.png")
            self._plots.contact_sheet(examples.rows, sheets[-1])
        return [curve, *sheets]
