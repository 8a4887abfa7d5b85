"""Segment images by points, boxes or words: masks, overlays, cut-outs, COCO, polygons or JSON.

Examples:
  triton-sam predict photo.jpg --point 512,300 --point 40,40,0 --out mask.png --overlay overlay.png
  triton-sam predict photos/*.jpg --box 100,80,420,300 --out masks.json
  triton-sam predict street.jpg --text "traffic light" --text bus --overlay overlay.png --out found.json
  curl -s https://example.org/cat.jpg | triton-sam predict - --point 300,200 --format cutout --out - > cat.png
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .._common import strict_json
from .._common.signals import ends_by_interrupt
from ..client.sync import SAM2TritonClient
from ..concepts.query import MASK_THRESHOLD, check_query
from ..errors import ConfigurationError, InputError, PromptError
from ..families import get_family
from ..families.sam2 import SAM2
from ..inputs.images import open_image
from ..inputs.prompts import check_prompts
from ..masks.cleanup import Cleanup
from ..masks.drawing import overlay
from ..masks.segment import Segment, best_of
from ..tracks.prompts import read_mask
from . import _options, _predict_files, _progress, _server, _task_options
from ._predict_files import FILE_FORMATS, IMAGES, NUMPY, STREAM, Source, facts, target
from ._task_options import box, point

DEFAULT_FAMILY = SAM2.name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image file: JPEG, PNG, WebP, TIFF, ...; a pattern; an http(s) URL; - for stdin",
    )
    parser.add_argument(
        "--point",
        action="append",
        type=point,
        metavar="X,Y[,LABEL]",
        help="point in image pixels; label 1: foreground (default), 0: background; repeat for more points",
    )
    parser.add_argument(
        "--box", action="append", type=box, metavar="X1,Y1,X2,Y2", help="box in image pixels; repeat for more objects"
    )
    parser.add_argument(
        "--mask-input", type=Path, metavar="NPY", help="logits of an earlier call (--logits), which this one refines"
    )
    parser.add_argument(
        "--multimask",
        action="store_true",
        help="return all candidates of each object: three, or one with SAM-HQ",
    )
    parser.add_argument("--all-candidates", action="store_true", help="write all candidates instead of the best")
    parser.add_argument("--out", metavar="FILE", help="write the best mask of each object; - for standard output")
    parser.add_argument(
        "--format",
        choices=tuple(FILE_FORMATS),
        help="format of --out: png, 255 inside and 0 outside; cutout, the object on a transparent background; rle; "
        "polygons; coco; geojson (default: png, coco or geojson by the name of the file)",
    )
    parser.add_argument("--overlay", type=Path, metavar="PNG", help="write the image with masks and prompts drawn in")
    parser.add_argument("--logits", type=Path, metavar="NPY", help="write the logits of the masks for --mask-input")
    parser.add_argument(
        "--json", action="store_true", help="print scores, boxes, COCO RLE and timings as JSON, one line per image"
    )
    _task_options.add_cleanup(parser)
    add_word_options(parser)
    _options.add_client(parser)
    parser.set_defaults(model=None)  # run() chooses it by the prompt
    _options.add_quiet(parser)


@dataclass(frozen=True)
class _Answer:
    source: Source
    segments: list[Segment]
    timings: dict[str, float]


def run(args: argparse.Namespace) -> int:
    words = words_are_wanted(args)
    args.model = _task_options.family_for_words(args.model) if words else args.model or DEFAULT_FAMILY
    _check_options(args, words)
    cleanup = Cleanup() if words else replace(_task_options.cleanup_of(args), mask_threshold=args.mask_threshold or 0.0)
    sources = _predict_files.read_sources(args.images)
    form = None if args.out is None else FILE_FORMATS[_predict_files.format_of(args.out, args.format)]
    prompt = _prompt(args)
    # Check prompts and files before the server encodes an image, which may take a minute.
    objects = [1 if words else _objects(args, source, prompt) for source in sources]
    asked = read_words(args) if words else {}
    if words:
        check_words(asked, sources)
    several = len(sources) > 1
    _check_files(args, sources, objects, form, several)
    counts: list[int] = []
    lines: list[str] = []
    drawn: list[Path] = []
    empty: list[int] = []
    find = partial(_find, args, asked, form, several)
    with ends_by_interrupt(), _server.connected(args) as client:

        def chosen() -> Iterator[tuple[Source, Sequence[Segment]]]:
            """Segment one image after the other, because the masks of many may not fit into memory."""
            with _progress.bar(args, total=len(sources), unit="image", leave=False, in_logs=False) as shown:
                for each in sources:
                    answer = find(client, each) if words else _ask(args, client, each, prompt, cleanup)
                    segments = answer.segments if words or args.all_candidates else best_of(answer.segments)
                    counts.append(len(segments))
                    lines.extend(_lines(args, answer, segments, several))
                    drawn.extend(_draw_and_keep(args, each, segments, prompt, several))
                    empty.append(sum(segment.box is None for segment in segments))
                    shown.update()
                    yield each, segments

        files = _predict_files.contents(args.out, form, sources, chosen())
        if not args.json:
            _server.say_if_demo_model(args, client)
    if words:  # the number of files is known from here on
        _check_files(args, sources, counts, form, several)
    written = [*_predict_files.write(args.out, files), *drawn]
    if args.json or args.out != STREAM:
        print("".join(f"{line}\n" for line in lines), end="")
    for path in written:
        _options.say(args, f"wrote {path}")
    if form is not None and form.leaves_out_empty:
        _options.say_left_out(args, args.out, sum(empty))
    if not (args.out or args.overlay or args.logits or args.json):
        _options.say(args, "write the masks with --out mask.png, --overlay overlay.png, or print them with --json")
    return 0


def _check_options(args: argparse.Namespace, words: bool) -> None:
    """Check for options that exclude each other."""
    if not words and not args.point and not args.box and not args.mask_input:
        raise PromptError('the prompt is missing: give --point X,Y, --box X1,Y1,X2,Y2 or --text "a dog"')
    if args.box and len(args.box) > 1 and args.point:
        raise PromptError("several boxes are several objects: points are possible with one box at most")
    if args.clip_to_box and not args.box:
        raise PromptError("--clip-to-box is for --box")
    if args.keep_clicked and not args.point:
        raise PromptError("--keep-clicked is for --point")
    if args.format and args.out is None:
        raise ConfigurationError("--format is for --out: name a file, or - for standard output")
    if args.out == STREAM and args.json:
        raise ConfigurationError("--out - and --json both write to standard output: name a file")
    if args.overlay:
        _predict_files.check_suffix("--overlay", args.overlay, IMAGES)
    if args.logits:
        _predict_files.check_suffix("--logits", args.logits, NUMPY)
    args.multimask = args.multimask or args.all_candidates


def _prompt(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "point_coords": [point[:2] for point in args.point] if args.point else None,
        "point_labels": [point[2] for point in args.point] if args.point else None,
        "box": args.box or None,
        "mask_input": None if args.mask_input is None else _predict_files.read_logits(args.mask_input),
    }


def _objects(args: argparse.Namespace, source: Source, prompt: dict[str, Any]) -> int:
    """Return the number of objects that a prompt describes in an image."""
    size, mask_size = open_image(source.content).size, get_family(args.model).mask_size
    try:
        return len(check_prompts(*prompt.values(), image_size=size, mask_size=mask_size))
    except PromptError as error:
        raise (error if len(args.images) == 1 else PromptError(f"{source.name}: {error}")) from None


def _check_files(
    args: argparse.Namespace,
    sources: Sequence[Source],
    objects: Sequence[int],
    form: _predict_files.FileFormat | None,
    several: bool,
) -> None:
    candidates = get_family(args.model).candidates if args.all_candidates else 1
    masks: list[Path] = []
    if form is not None and args.out == STREAM:
        count = sum(objects) * candidates if form.each else len(sources)
        if count > 1 and not form.several:
            raise ConfigurationError(f"--out - takes one file, not {count}: name a file, or use --format coco")
        if not count:
            raise InputError("there is no mask to write to standard output: nothing was found")
    elif form is not None and form.several:
        masks.append(Path(args.out))
    elif form is not None:
        for source, count in zip(sources, objects, strict=True):
            masks += _predict_files.numbered(
                target(args.out, source.stem, several), count * candidates if form.each else 1
            )
    masks += [target(args.logits, source.stem, several) for source in sources if args.logits]
    drawn = [target(args.overlay, source.stem, several) for source in sources if args.overlay]
    _predict_files.check_targets(masks, drawn, [source.name for source in sources])


def _ask(
    args: argparse.Namespace, client: SAM2TritonClient, source: Source, prompt: dict[str, Any], cleanup: Cleanup
) -> _Answer:
    start = time.perf_counter()
    client.set_image(source.content)  # the original bytes of the file
    encoded = time.perf_counter()
    options = {"multimask_output": args.multimask, "cleanup": cleanup, "logits": args.logits is not None}
    segments = client.segment(**prompt, **options)
    done = time.perf_counter()
    timings = {"set_image_ms": round(1000 * (encoded - start), 1), "segment_ms": round(1000 * (done - encoded), 1)}
    return _Answer(source, segments, timings)


def _find(
    args: argparse.Namespace,
    asked: Mapping[str, Any],
    form: _predict_files.FileFormat | None,
    several: bool,
    client: SAM2TritonClient,
    source: Source,
) -> _Answer:
    start = time.perf_counter()
    found = client.find(**asked, image=source.content)
    if not found:
        _options.say(args, f"{source.name}: no instance was found")
    _check_files(args, [source], [len(found)], form, several)  # before the overlay of this image is written
    return _Answer(source, list(found), {"find_ms": round(1000 * (time.perf_counter() - start), 1)})


def _draw_and_keep(
    args: argparse.Namespace, source: Source, segments: Sequence[Segment], prompt: dict[str, Any], several: bool
) -> list[Path]:
    """Write the overlay and the logits of one image and return the paths."""
    written = []
    if args.overlay:
        masks = [segment.mask for segment in segments]
        drawn = overlay(source.content, masks, prompt["point_coords"], prompt["point_labels"], prompt["box"])
        path = target(args.overlay, source.stem, several)
        _options.write_png(path, drawn)
        written.append(path)
    if args.logits:
        _predict_files.write_logits(path := target(args.logits, source.stem, several), best_of(list(segments)))
        written.append(path)
    return written


def _lines(args: argparse.Namespace, answer: _Answer, segments: Sequence[Segment], several: bool) -> Iterator[str]:
    """Yield one line for each mask, or with --json for the image."""
    if args.json:
        yield strict_json.dumps(_document(answer, several))
        return
    before = f"{answer.source.name}: " if several else ""
    for segment in segments:
        which = f", candidate {segment.candidate}" if args.all_candidates else ""
        name = f"{segment.label} {segment.candidate}" if segment.label else f"object {segment.object_index}"
        score, area = f"score {segment.score:.3f}", f"{segment.area} pixels"
        yield f"{before}{name}{which}: {score}, {area}, box {segment.box or '-'}"


def _document(answer: _Answer, several: bool) -> dict[str, Any]:
    width, height = open_image(answer.source.content).size
    objects = [{**facts(segment), "rle": segment.to_rle()} for segment in answer.segments]
    named = {"file": answer.source.name} if several else {}
    return {**named, "image": {"width": width, "height": height}, "objects": objects, **answer.timings}


_MASKS = ("example_mask", "not_example_mask")
_CLICKS = ("point", "box", "mask_input", "logits")


def add_word_options(parser: argparse.ArgumentParser) -> None:
    group = _task_options.add_words_group(parser)
    _task_options.add_texts(group)
    group.add_argument(
        "--example", action="append", type=box, metavar="X1,Y1,X2,Y2", help="box of an instance; repeat for more"
    )
    group.add_argument(
        "--not-example", action="append", type=box, metavar="X1,Y1,X2,Y2", help="box of an object to exclude"
    )
    group.add_argument(
        "--example-mask",
        action="append",
        type=Path,
        metavar="FILE",
        help="mask of an instance, a PNG of the image's size, used as a box; repeat for more",
    )
    group.add_argument(
        "--not-example-mask", action="append", type=Path, metavar="FILE", help="mask of an object to exclude"
    )
    group.add_argument("--example-image", type=Path, metavar="FILE", help="another image, which all examples belong to")
    _task_options.add_word_filters(group)
    group.add_argument(
        "--mask-threshold",
        type=float,
        metavar="P",
        help=f"lowest probability of a pixel (default: {MASK_THRESHOLD}); for clicks, boxes and --mask-input, the "
        "logit above which a pixel is foreground (default: 0, as in the official predictor; lower gives larger masks)",
    )


def words_are_wanted(args: argparse.Namespace) -> bool:
    """Return whether the command finds instances instead of segmenting by clicks."""
    examples = [getattr(args, name) for name in ("example", "not_example", *_MASKS)]
    wanted = any((args.text, *examples))
    given = {
        **_task_options.word_filters(args),
        **({"example_image": args.example_image} if args.example_image else {}),
    }
    if given and not wanted:
        raise ConfigurationError(f"--{next(iter(given)).replace('_', '-')} is for --text and --example")
    if args.example_image and not any(examples):
        raise ConfigurationError("--example-image needs --example or --example-mask, which show something in it")
    clicks = [name for name in _CLICKS if getattr(args, name)]
    if wanted and clicks:
        raise PromptError(f"--{clicks[0].replace('_', '-')} cannot be combined with --text and --example")
    candidates = [name for name in ("multimask", "all_candidates") if getattr(args, name)]
    if wanted and candidates:
        raise PromptError(f"--{candidates[0].replace('_', '-')} is for clicks: an instance has one mask")
    if wanted and not _task_options.cleanup_of(args).changes_nothing:
        raise PromptError("the clean-up options are for clicks: leave them out with --text and --example")
    return wanted


def read_words(args: argparse.Namespace) -> dict[str, Any]:
    """Read the files of example masks and return the arguments of client.find() except the image."""
    shown, others = args.example or [], args.not_example or []
    masks = {} if args.mask_threshold is None else {"mask_threshold": args.mask_threshold}
    return {
        "text": args.text,
        "boxes": [*shown, *others] or None,
        "box_labels": [1] * len(shown) + [0] * len(others) or None,
        "example": args.example_image,
        **_task_options.word_filters(args),
        **masks,
        **_masks(args),
    }


def check_words(asked: Mapping[str, Any], sources: Sequence[Source]) -> None:
    """Check the arguments from read_words() against the images before a request is sent."""
    query = check_query(**{name: value for name, value in asked.items() if name != "example"})
    example = asked["example"]
    for image in [each.content for each in sources] if example is None else [example]:
        query.check_inside(open_image(image).size)


def _masks(args: argparse.Namespace) -> dict[str, Any]:
    shown, others = ([read_mask(file) for file in getattr(args, name) or []] for name in _MASKS)
    if not shown and not others:
        return {}
    return {"masks": [*shown, *others], "mask_labels": [1] * len(shown) + [0] * len(others)}
