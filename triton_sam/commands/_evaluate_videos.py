"""The part of `evaluate` that measures videos: J, F and J&F of tracked objects."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from .._common import strict_json
from .._common.files import atomic_write
from ..errors import ConfigurationError, SamError
from . import _options, _server, _video

if TYPE_CHECKING:
    from ..evaluation.video_report import VideoReport
    from ..evaluation.video_runner import VideoSettings
    from ..evaluation.videos import VideoDataset

FILE = "videos.json"
"""The results in the folder of --out."""


def run(args: argparse.Namespace, names: Sequence[str]) -> int:
    """Measure data sets of videos. After an interruption or an error, print the results so far and raise it again."""
    from ..evaluation.video_report import video_table, videos_to_json
    from ..evaluation.video_runner import VideoSettings
    from ..evaluation.videos import open_videos

    settings = VideoSettings(args.prompt, args.objects)
    datasets = [open_videos(name, args.count, args.seed) for name in names]
    if len({dataset.name for dataset in datasets}) < len(datasets):
        raise ConfigurationError("each data set needs a name of its own: rename a folder")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    reports: list[VideoReport] = []
    stop: SamError | KeyboardInterrupt | None = None
    with (
        _server.server_urls(args) as urls,
        _video.make_client(urls[0], args.name, args.timeout, _options.access(args), args.model) as client,
    ):
        for dataset in datasets:
            report, stop = _measure(client, dataset, settings, quiet=args.quiet)
            reports += [report] if report.results else []
            if stop is not None:
                break
    if reports:
        about = {"url": urls[0], "model": args.model, "name": args.name}
        result = {"server": about, **videos_to_json(reports, settings)}
        print(strict_json.dumps(result) if args.json else video_table(reports))
        _write(args, result)
    if stop is not None:
        raise stop
    return 0


def _measure(
    client: Any, dataset: VideoDataset, settings: VideoSettings, quiet: bool
) -> tuple[VideoReport, SamError | KeyboardInterrupt | None]:
    """Measure one data set; return the report and the error or interruption that ended it early, if any."""
    from ..evaluation.video_report import VideoReport
    from ..evaluation.video_runner import measure_video

    results, stop = [], None
    with tqdm(desc=dataset.name, unit="frame", disable=quiet) as bar:
        try:
            for number, (name, load) in enumerate(dataset.loaders, start=1):
                bar.set_postfix_str(f"video {number} of {len(dataset.loaders)}: {name}", refresh=False)
                results += measure_video(
                    lambda images: _video.opened(client, images), load(), settings, lambda *_: bar.update()
                )
        except (SamError, KeyboardInterrupt) as error:
            stop = error
    return VideoReport(dataset, tuple(results), complete=stop is None), stop


def _write(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if args.out is None:
        return
    path: Path = args.out / FILE
    atomic_write(path, strict_json.dumps(result, indent=1).encode())
    _options.say(args, f"wrote {path}")
