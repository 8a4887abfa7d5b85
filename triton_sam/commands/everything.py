"""Segment all objects of images without prompts: overlay, COCO, label image, JSON Lines.

Examples:
  triton-sam everything photo.jpg --local --overlay objects.png
  triton-sam everything photos/*.jpg --coco objects.json --points-per-side 16
  triton-sam everything photo.jpg --label-image labels.png > objects.jsonl

docs/how-to/everything.md describes the files and the parameters.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._common import strict_json
from .._common.files import atomic_write
from .._common.signals import ends_by_interrupt
from ..client.everything import Progress, last_of
from ..client.sync import SAM2TritonClient
from ..everything.parameters import Parameters, parameters_of
from ..everything.search import FoundObject, SearchProgress
from ..inputs.images import open_image
from ..masks.boxes import corner_and_size
from ..masks.drawing import overlay_objects
from ..masks.label_map import label_map_of, label_map_png
from . import _options, _progress, _server, _task_options
from ._predict_files import IMAGES, Source, check_suffix, check_targets, coco_of, read_sources, target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image file: JPEG, PNG, WebP, TIFF, ...; a pattern; an http(s) URL; - for stdin",
    )
    parser.add_argument("--overlay", type=Path, metavar="PNG", help="write the image with all masks drawn in")
    parser.add_argument("--coco", type=Path, metavar="JSON", help="write the masks of all images as one COCO file")
    parser.add_argument(
        "--label-image",
        type=Path,
        metavar="PNG",
        help="write an image whose pixels hold the number of their object, 0 for none; small objects win",
    )
    parser.add_argument(
        "--out", type=Path, metavar="JSONL", help="write one line of JSON for each mask (default: standard output)"
    )
    _task_options.add_search_parameters(parser)
    _task_options.add_cleanup(parser, of_prompts=False)
    _options.add_client(parser)
    _options.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    for option, path in (("--overlay", args.overlay), ("--label-image", args.label_image)):
        if path:
            check_suffix(option, path, IMAGES)
    cleanup = _task_options.cleanup_of(args, of_prompts=False)
    parameters = parameters_of(args.model, {**_task_options.search_parameters(args), "cleanup": cleanup})
    sources = read_sources(args.images)
    _check_files(args, sources)
    for source in sources:
        open_image(source.content)  # before a server starts, so that a wrong path is reported immediately
    lines: list[str] = []
    empty: list[int] = []
    with ends_by_interrupt(), _server.connected(args) as client:

        def searched() -> Iterator[tuple[Source, Sequence[FoundObject]]]:
            """Search one image after the other, because the masks of several may not fit into memory."""
            for source in sources:
                segments = _segment(args, client, source, parameters, len(sources) > 1)
                lines.extend(_lines(source, segments))
                empty.append(sum(each.box is None for each in segments))
                yield source, segments

        found = searched()
        document = coco_of(sources, found) if args.coco else b""
        for _ in found:  # without --coco, nothing has searched the images yet
            pass
    if args.out is None:
        sys.stdout.writelines(lines)
    else:
        atomic_write(args.out, "".join(lines).encode())
        _options.say(args, f"wrote {args.out}")
    if args.coco:
        atomic_write(args.coco, document)
        _options.say(args, f"wrote {args.coco}")
        _options.say_left_out(args, args.coco, sum(empty))
    return 0


def _segment(
    args: argparse.Namespace, client: SAM2TritonClient, source: Source, parameters: Parameters, several: bool
) -> Sequence[FoundObject]:
    """Segment one image and write its files."""
    with _progress.bar(args, desc=source.file_name, unit="point") as shown:
        found = last_of(client.search_steps(source.content, parameters), _shown_by(shown, parameters))
    segments = found.objects
    if not segments:
        _options.say(args, f"{source.name}: no mask is left. {found.reason}")
    if args.overlay:
        drawn = overlay_objects(source.content, [segment.mask for segment in segments])
        place = target(args.overlay, source.stem, several)
        _options.write_png(place, drawn)
        _options.say(args, f"wrote {place}")
    if args.label_image:
        width, height = open_image(source.content).size
        masks = [segment.mask for segment in segments]
        labels = label_map_of(masks) if masks else np.zeros((height, width), np.uint16)
        atomic_write(place := target(args.label_image, source.stem, several), label_map_png(labels, palette=False))
        _options.say(args, f"wrote {place}")
    return segments


def _shown_by(shown: Any, parameters: Parameters) -> Progress:
    """Return a function that updates a bar, and prints after the second step how to shorten a long search."""
    times: list[tuple[float, int]] = []

    def show(step: SearchProgress) -> None:
        shown.total = step.total
        shown.update(step.done - shown.n)
        times.append((time.monotonic(), step.done))
        if len(times) == 2:  # the first step includes the encoder
            (began, before), (now, done) = times
            seconds = (now - began) / (done - before) * (step.total - done)
            if seconds > _progress.LONG and not shown.disable:
                text = f"about {_progress.duration(seconds)} are left.{_progress.hint(parameters)}"
                shown.write(text, file=sys.stderr)

    return show


def _lines(source: Source, segments: Sequence[FoundObject]) -> Iterator[str]:
    """Yield one line of JSON for each mask. ``object`` is its number in the label image, from 1."""
    for number, segment in enumerate(segments, 1):
        record = {
            "image": source.name,
            "object": number,
            "area": segment.area,
            "bbox": corner_and_size(segment.box),
            "predicted_iou": round(segment.score, 5),
            "stability_score": round(segment.stability_score, 5),
            "point_coords": [list(segment.point)],
            "crop_box": corner_and_size(segment.crop_box),
            "segmentation": segment.to_rle(),
        }
        yield strict_json.dumps(record) + "\n"


def _check_files(args: argparse.Namespace, sources: Sequence[Source]) -> None:
    """Check that all results can be written without overwriting each other or an image."""
    drawn = [given for given in (args.overlay, args.label_image) if given]
    _options.check_writable(drawn)  # the image's name is added to a file name, so a folder is invalid
    targets = [target(given, source.stem, len(sources) > 1) for given in drawn for source in sources]
    targets += [given for given in (args.coco, args.out) if given]
    check_targets([], targets, [source.name for source in sources])
