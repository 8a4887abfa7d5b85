"""Annotate many images from boxes, points, rough masks or words, or find all objects.

Examples:
  triton-sam annotate instances.json --with boxes --images photos --out masks --local
  triton-sam annotate photos --with boxes --prompts labels --class-names cat dog --format yolo --out masks
  triton-sam annotate photos --with points --prompts clicks.csv --out masks
  triton-sam annotate 'photos/**/*.jpg' --with everything --out objects --url host1:8000 --url host2:8000
  triton-sam annotate photos --with words --text "traffic light" --text bus --out found
  triton-sam annotate slides --large --with everything --level 1 --format geojson gpkg --out cells

Rerun the same command to continue after an interruption. docs/how-to/annotate.md describes the files.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from .._common import strict_json
from .._common.signals import ends_by_interrupt
from ..annotate.folder import ERRORS, SKIPPED, Part, RunFolder, Shard
from ..annotate.job import EVERYTHING, WORDS, Inputs, Job, Task, is_ready, opened
from ..annotate.large import LargeResult, Tiling, close_files, joined
from ..annotate.large_writers import LARGE_WRITERS
from ..annotate.ray_engine import DEFAULT_ACTORS, annotate_with_ray, ray_data
from ..annotate.run import annotate
from ..annotate.sources import ImageItem
from ..annotate.writers import WRITERS, Writer
from ..client.sync import SamTritonClient
from ..errors import ConfigurationError, InputError, MissingDependencyError
from ..everything.parameters import parameters_of
from ..families.sam2 import SAM2
from ..inputs.remote import place_of
from . import _options, _progress, _server, _task_options

THREADS, RAY = "threads", "ray"
TASKS: tuple[Task, ...] = get_args(Task)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder, pattern, list (.txt), COCO data set (.json), image or video; or a URL of one",
    )
    parser.add_argument("--with", dest="task", choices=TASKS, required=True, help="what to make masks from")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="PATH",
        help="COCO file with boxes or masks (default: the source), folder of YOLO's files, or CSV or JSON with points",
    )
    parser.add_argument(
        "--class-names",
        nargs="+",
        default=[],
        metavar="NAME",
        help="classes of YOLO's files, from class 0; other files name their own",
    )
    parser.add_argument("--images", metavar="DIR", help="folder or URL of the images of a list or a COCO data set")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="only every N-th image, or frame of a video (default: 1)"
    )
    parser.add_argument(
        "--format",
        dest="formats",
        action="extend",
        nargs="+",
        choices=tuple(dict.fromkeys((*WRITERS, *LARGE_WRITERS))),
        metavar="FORMAT",
        help=f"{_meanings(WRITERS)}; several, or repeat it (default: coco). With --large: {_meanings(LARGE_WRITERS)} "
        "(default: geojson)",
    )
    _options.add_all_parts(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N images or tiles; rerun to continue")
    parser.add_argument(
        "--dry-run", action="store_true", help="read and check everything without contacting a server or writing a file"
    )
    parser.add_argument(
        "--threads", type=int, default=2, metavar="N", help="images at a time for each --url (default: 2)"
    )
    parser.add_argument(
        "--part",
        type=_part,
        metavar="I/N",
        help="fill every N-th shard from I = 0 on, beside the processes that fill the others; a last run without this "
        "option writes the files",
    )
    parser.add_argument("--engine", choices=(THREADS, RAY), default=THREADS, help="runs the work (default: threads)")
    parser.add_argument(
        "--actors", type=int, metavar="N", help=f"with --engine ray: processes (default: {DEFAULT_ACTORS})"
    )
    parser.add_argument(
        "--address", help="with --engine ray: address of a cluster (default: start Ray on this machine)"
    )
    large = parser.add_argument_group("large images")
    large.add_argument(
        "--large", action="store_true", help="the images are too large for one request: cut them into tiles"
    )
    _task_options.add_tiles(large)
    _task_options.add_shown(large)
    _task_options.add_search_parameters(parser)
    words = _task_options.add_words_group(parser)
    _task_options.add_texts(words)
    _task_options.add_word_filters(words, limit="--max-instances")
    _options.add_client(parser, several_urls=True)
    parser.set_defaults(model=None)  # _job() chooses it by the task
    _options.add_quiet(parser)


def _meanings(writers: Mapping[str, Writer]) -> str:
    return "; ".join(f"{each.name}: {each.meaning}" for each in writers.values())


def run(args: argparse.Namespace) -> int:
    job = _job(args)
    _check(args, job)
    try:
        return _run(args, job)
    finally:
        close_files()


def _run(args: argparse.Namespace, job: Job) -> int:
    inputs = job.read()
    items = inputs.items[: args.limit]
    if args.dry_run:
        return _dry_run(args, items, inputs)
    with ends_by_interrupt(), _served(args, job) as served, served.clients() as clients:
        folder = RunFolder(args.out, served.manifest(inputs, clients), inputs.items)
        with folder.opened(args.part):
            shards = list(folder.shards(items, args.part))
            _say_estimate(args, served, clients, sum(len(each) for number, each in shards if not folder.has(number)))
            total, unit = sum(len(each) for _, each in shards), _unit(args)
            with _progress.bar(args, total=total, unit=unit, bar_format=_progress.FRACTIONS) as shown:
                _annotate(args, folder, shards, served, inputs, clients, _progress.RunProgress(shown))
            return 0 if args.part is not None else _finish(args, folder, inputs, job)


def _unit(args: argparse.Namespace) -> str:
    return "tile" if args.large else "image"


def _annotate(
    args: argparse.Namespace,
    folder: RunFolder,
    shards: Sequence[Shard],
    job: Job,
    inputs: Inputs,
    clients: Sequence[SamTritonClient],
    progress: _progress.RunProgress,
) -> None:
    if args.engine == RAY:
        options = {"actors": args.actors or DEFAULT_ACTORS, "threads": args.threads, "address": args.address}
        annotate_with_ray(folder, shards, job.absolute(), **options, done=progress.done)
    else:
        work, workers = job.work(inputs, progress.tell), [*clients] * args.threads
        annotate(folder, shards, work, workers, progress.done, progress.tell, is_ready)


def _say_estimate(args: argparse.Namespace, job: Job, clients: Sequence[SamTritonClient], images: int) -> None:
    """Print the minimum time that a search of many images takes."""
    if job.task == EVERYTHING and images and not args.quiet:
        parameters = parameters_of(job.family, dict(job.parameters))
        text = _progress.estimate(clients[0], parameters, images, len(clients))
        if text is not None:
            _options.say(args, text)


def _part(text: str) -> Part:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with I from 0 to N - 1, for example 0/8")
    return Part(int(index), int(count))


def _job(args: argparse.Namespace) -> Job:
    filters = _task_options.word_filters(args)
    if filters and args.task != WORDS:
        raise ConfigurationError("--threshold, --nms and --max-instances are for --with words")
    return Job(
        source=args.source,
        task=args.task,
        images=place_of(args.images) if args.images else None,
        every=args.every,
        prompts=args.prompts,
        class_names=tuple(args.class_names),
        family=_task_options.family_for_words(args.model) if args.task == WORDS else args.model or SAM2.name,
        name=args.name,
        urls=tuple(args.url or (None,)),
        client={"timeout": args.timeout, **_options.access(args)},
        parameters={**_task_options.search_parameters(args), **filters},
        texts=tuple(args.text or ()),
        tiling=_tiling(args),
    )


def _tiling(args: argparse.Namespace) -> Tiling | None:
    tiling = Tiling(args.tile, args.overlap, args.level, tuple(args.channels), tuple(args.index), args.stretch)
    if not args.large and tiling != Tiling():
        raise ConfigurationError("--tile, --overlap, --level, --channels, --index and --stretch are for --large")
    return tiling if args.large else None


def _formats(args: argparse.Namespace) -> list[Writer]:
    table: Mapping[str, Writer] = LARGE_WRITERS if args.large else WRITERS
    names = dict.fromkeys(args.formats or (("geojson",) if args.large else ("coco",)))
    wrong = [name for name in names if name not in table]
    if wrong:
        raise ConfigurationError(
            f"--format {wrong[0]} is {'not ' if args.large else ''}for --large: use {', '.join(table)}"
        )
    return [table[name] for name in names]


def _check(args: argparse.Namespace, job: Job) -> None:
    """Check the options that argparse cannot."""
    for name in ("limit", "threads", "actors", "every"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name} must be at least 1, not {value}")
    for name in ("address", "actors"):
        if getattr(args, name) is not None and args.engine != RAY:
            raise ConfigurationError(f"--{name} is for --engine ray")
    if args.part is not None and args.engine == RAY:
        raise ConfigurationError("give --part or --engine ray, not both: Ray shares the shards itself")
    if args.engine == RAY:
        ray_data()
    job.check()
    for writer in _formats(args):
        writer.check()
    _server.check(args)


@contextlib.contextmanager
def _served(args: argparse.Namespace, job: Job) -> Iterator[Job]:
    """Yield the job, with --local with the URL of a local server."""
    if not args.local:
        yield job
        return
    with _server.local_server(args, _options.repository(args)) as server:
        yield replace(job, urls=(server.grpc_url,))


def _finish(args: argparse.Namespace, folder: RunFolder, inputs: Inputs, job: Job) -> int:
    """Write the files of each format and the reports, print a summary and return the exit code."""
    counts: dict[int, int] = {}  # objects of each image

    def results() -> Iterator[Any]:
        kept = (each for each in folder.records() if not each.error)
        for each in joined(inputs.items, kept, is_search=job.is_search) if args.large else kept:
            counts[each.id] = len(each.categories if isinstance(each, LargeResult) else each.objects)
            yield each

    errors, skipped = folder.write_reports((*inputs.skipped, *inputs.left_out))
    left = list(inputs.skipped)
    for writer in _formats(args):
        found = writer.write(args.out, results, inputs.categories, _options.trace_of(args))
        left += (replace(each, what=f"{each.what} in {writer.name}") for each in found)
    if len(left) > len(inputs.skipped):
        folder.write_reports((*left, *inputs.left_out))
    skipped += len(left)
    images, objects = len(counts) if args.large else len(counts) + errors, sum(counts.values())
    _options.say(
        args,
        f"{args.out}: {images} images, {objects} objects, {errors} errors, {skipped} skipped{_left_out(inputs)}",
    )
    return _code(args, len(counts) if job.is_search else objects, errors, skipped)


def _left_out(inputs: Inputs) -> str:
    """Return the part of the summary about files that are not images."""
    return f"; left out: {', '.join(f'{each.what} {each.image}' for each in inputs.left_out)}" * bool(inputs.left_out)


def _code(args: argparse.Namespace, done: int, errors: int, skipped: int) -> int:
    """Return the exit code: nonzero if the run completed none of its work."""
    if done or not errors + skipped:
        return 0
    where = "" if args.dry_run else f": {args.out / ERRORS} and {args.out / SKIPPED} have the reasons"
    print(f"triton-sam: error: nothing could be annotated{where}", file=sys.stderr)
    return 1


def _dry_run(args: argparse.Namespace, items: Sequence[ImageItem], inputs: Inputs) -> int:
    """Print one line of JSON for each image that would fail and each item that would be skipped."""
    found, errors, objects = list(inputs.skipped), 0, 0
    for item in items:
        try:
            image = opened(item)
        except (InputError, MissingDependencyError) as error:
            errors += 1
            print(strict_json.dumps({"image": item.name, "error": str(error)}))
            continue
        found += image.skipped
        if inputs.prompts is not None:
            kept, left = inputs.prompts.of(item, image.size)
            objects += len(kept)
            found += left
    for each in (*found, *inputs.left_out):
        print(strict_json.dumps({"image": each.image, "what": each.what, "why": each.why}))
    count = f"{objects} prompts, " if inputs.prompts is not None else ""
    _options.say(args, f"{len(items)} {_unit(args)}s, {count}{errors} errors, {len(found)} skipped{_left_out(inputs)}")
    return _code(args, len(items) - errors if inputs.prompts is None else objects, errors, len(found))
