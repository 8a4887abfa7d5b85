"""Annotate many images: boxes, points or rough masks become masks, or all objects are found.

Examples:
  triton-sam annotate instances.json --with boxes --images photos --out masks --local
  triton-sam annotate photos --with boxes --prompts labels --class-names cat dog --format yolo --out masks
  triton-sam annotate photos --with points --prompts clicks.csv --out masks
  triton-sam annotate 'photos/**/*.jpg' --with everything --out objects --url host1:8000 --url host2:8000

The same command goes on after an interruption. docs/how-to/annotate.md describes the files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from tqdm import tqdm

from .._common.signals import ends_by_interrupt
from ..annotate.folder import RunFolder
from ..annotate.job import Inputs, Job, Task
from ..annotate.records import ImageRecord
from ..annotate.run import annotate
from ..annotate.segmenting import checked_size
from ..annotate.sources import ImageItem
from ..annotate.writers import WRITERS
from ..errors import ConfigurationError, InputError
from . import _everything_options, _options, _server

TASKS: tuple[Task, ...] = get_args(Task)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "source", metavar="SOURCE", help="folder, pattern, list (.txt), COCO data set (.json), or image"
    )
    parser.add_argument("--with", dest="task", choices=TASKS, required=True, help="where masks come from")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="PATH",
        help="COCO file with boxes or masks (default: the source), folder of YOLO's files, or CSV or JSON with points",
    )
    parser.add_argument("--class-names", nargs="+", default=[], metavar="NAME", help="YOLO's classes, from class 0")
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder of the images of a list or a COCO data set")
    parser.add_argument(
        "--format",
        dest="formats",
        nargs="+",
        choices=tuple(WRITERS),
        metavar="FORMAT",
        default=["coco"],
        help=f"{'; '.join(f'{each.name}: {each.meaning}' for each in WRITERS.values())} (default: coco)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N images; a later run may go on")
    parser.add_argument(
        "--dry-run", action="store_true", help="read and check everything, ask no server, write nothing"
    )
    parser.add_argument(
        "--threads", type=int, default=2, metavar="N", help="images at a time for each --url (default: 2)"
    )
    _everything_options.add_parameters(parser)
    _options.add_client(parser, several_urls=True)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    job = _job(args)
    _check(args, job)
    inputs = job.read()
    items = inputs.items[: args.limit]
    if args.dry_run:
        return _dry_run(args, items, inputs)
    with ends_by_interrupt(), _served(args, job) as served, served.clients() as clients:
        folder = RunFolder(args.out, served.manifest(inputs, clients), inputs.items)
        with folder.opened():
            with tqdm(total=len(items), unit="image", disable=args.quiet) as shown:
                annotate(folder, items, served.work(inputs), clients * args.threads, _progress(shown))
            _finish(args, folder, inputs)
    return 0


def _job(args: argparse.Namespace) -> Job:
    return Job(
        source=args.source,
        task=args.task,
        images=args.images,
        prompts=args.prompts,
        class_names=tuple(args.class_names),
        family=args.model,
        name=args.name,
        urls=tuple(args.url or (None,)),
        client={"timeout": args.timeout, **_options.access(args)},
        parameters=_everything_options.parameters(args),
    )


def _check(args: argparse.Namespace, job: Job) -> None:
    """Check the options that argparse cannot.

    Raises:
        ConfigurationError: an option is out of range or does not fit the others.
        MissingDependencyError: a format needs a package that is not installed.
    """
    for name in ("limit", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name} must be at least 1, not {value}")
    job.check()
    for name in args.formats:
        WRITERS[name].check()
    _server.check(args)


@contextlib.contextmanager
def _served(args: argparse.Namespace, job: Job) -> Iterator[Job]:
    """Yield the job with the URL of a local server, if --local asks for one."""
    if not args.local:
        yield job
        return
    with _server.local_server(args, _options.repository(args)) as server:
        yield replace(job, urls=(server.grpc_url,))


def _finish(args: argparse.Namespace, folder: RunFolder, inputs: Inputs) -> None:
    """Write the reports and the files of each format, and print a summary."""
    folder.write_reports(inputs.skipped)
    for name in dict.fromkeys(args.formats):
        WRITERS[name].write(args.out, lambda: (each for each in folder.records() if not each.error), inputs.categories)
    _summary(args, folder.records(), len(inputs.skipped))


def _progress(shown: Any) -> Callable[[ImageRecord], None]:
    errors = 0

    def show(record: ImageRecord) -> None:
        nonlocal errors
        errors += bool(record.error)
        shown.set_postfix(errors=errors, refresh=False)
        shown.update()

    return show


def _summary(args: argparse.Namespace, records: Iterator[ImageRecord], skipped: int) -> None:
    images = objects = errors = 0
    for record in records:
        images += 1
        objects += len(record.objects)
        errors += bool(record.error)
        skipped += len(record.skipped)
    _options.say(args, f"{args.out}: {images} images, {objects} objects, {errors} errors, {skipped} skipped")


def _dry_run(args: argparse.Namespace, items: Sequence[ImageItem], inputs: Inputs) -> int:
    """Print one line of JSON for each image that would fail and for everything that would be skipped."""
    found, errors, objects = list(inputs.skipped), 0, 0
    for item in items:
        try:
            size = checked_size(item)
        except InputError as error:
            errors += 1
            print(json.dumps({"image": item.name, "error": str(error)}))
            continue
        if inputs.prompts is not None:
            kept, left = inputs.prompts.of(item, size)
            objects += len(kept)
            found += left
    for each in found:
        print(json.dumps({"image": each.image, "what": each.what, "why": each.why}))
    count = f"{objects} prompts, " if inputs.prompts is not None else ""
    _options.say(args, f"{len(items)} images, {count}{errors} errors, {len(found)} skipped")
    return 0
