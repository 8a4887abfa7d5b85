"""Track objects through a video: prompt them in one frame, get their masks in all of them.

Examples:
  triton-sam track clip.mp4 --local --point 0:210,350 --out clip_masks
  triton-sam track clip.mp4 --object 1 --point 0:210,350 --negative-point 0:200,300 --object 2 --box 12:40,60,180,220 \\
      --format png --format coco --out clip_masks
  triton-sam track street.mp4 --text bus --text-every 30 --out street_masks
  triton-sam track 0 --box 0:100,80,400,460 --format rle --out camera_masks        # camera 0, until Ctrl-C
  ffmpeg -i rtsp://... -f mjpeg - | triton-sam track - --point 0:320,240 --out stream_masks

After an interruption, run the same command again: it starts from the beginning. docs/how-to/video.md describes the
files.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .._common.signals import ends_by_interrupt
from ..client.video.words import chosen_frames
from ..errors import ConfigurationError, PromptError, SamError
from ..tracks.folder import MANIFEST, TrackFolder
from ..tracks.formats import RECORDS, TRACK_FORMATS, TrackedVideo, encoder_name, mask_stems
from ..tracks.prompts import ObjectPrompt
from ..tracks.records import MaskRecord
from . import _options, _server, _task_options, _track_words, _video

DEFAULT_FORMATS = ("png", "overlay")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "video",
        metavar="VIDEO",
        help="video file, folder of images, number of a camera, URL, or - for a video on standard input",
    )
    _video.add_prompts(parser)
    _track_words.add_options(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument(
        "--format",
        action="append",
        choices=tuple(TRACK_FORMATS),
        help="; ".join(f"{form.name}: {form.meaning}" for form in TRACK_FORMATS.values())
        + f"; repeat for more (default: {' and '.join(DEFAULT_FORMATS)})",
    )
    parser.add_argument(
        "--range",
        type=_range,
        metavar="A:B",
        help="track frames A up to, but not including, B; either may be missing (default: from the first prompt on)",
    )
    parser.add_argument(
        "--reverse", action="store_true", help="track backwards, from the last prompt or the range's end"
    )
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="track frames 0, N, 2N, ... only; prompts must be at these"
    )
    parser.add_argument(
        "--quality", type=int, metavar="1..100", help="send frames as JPEG of this quality (default: without loss)"
    )
    parser.add_argument("--overwrite", action="store_true", help="remove the results of an earlier run from --out")
    _video.add_video_client(parser)
    _options.add_quiet(parser)


@dataclass(frozen=True)
class Plan:
    """The frames to track, in the order of tracking; None for an endless stream."""

    start: int
    frames: Sequence[int] | None


def run(args: argparse.Namespace) -> int:
    _server.check(args)
    tracked: Iterator[_track_words.Tracked] | None = None
    prompts = [] if _track_words.are_wanted(args) else _video.collected(args)
    formats = args.format or list(DEFAULT_FORMATS)
    if any(TRACK_FORMATS[name].needs_images for name in formats):
        encoder_name()  # reports a missing PyAV before the work
    source = _video.open_input(args.video, args.quality)
    with contextlib.closing(source.frames), ends_by_interrupt(), contextlib.ExitStack() as stack:
        if not prompts:
            prompts, tracked = _by_words(args, source, stack)
        args.model = args.model or _video.DEFAULT_FAMILY
        plan = make_plan(args, prompts, source.frames.num_frames)
        by_rules = bool(args.text) and _track_words.rules_were_used(args)
        parameters = _parameters(args, [] if by_rules else prompts, source)
        ids = None if by_rules else sorted({prompt.object_id for prompt in prompts})
        names = source.frames.names
        if "png" in formats and names is not None and mask_stems(names) is None:
            _options.say(
                args, f"two images of {source.name} have the same name without suffix: masks are numbered from 00000"
            )
        folder = TrackFolder(args.out, parameters, formats, ids, names)
        with folder.opened(args.overwrite, resume=not source.is_live):
            stop: SamError | None = None
            if plan.frames is None or not all(map(folder.has, plan.frames)):
                folder.begin()
                if by_rules:
                    tracked = tracked or _by_rules(args, source, _server_for_all(args, stack), stack)
                    _track_words.write_tracked(tracked, folder, plan.frames or ())
                else:
                    stop = _track(args, prompts, source, plan, folder)
            finished = TrackedVideo(
                source.name,
                source.frames.size,
                source.rate / args.every,
                folder.records,
                folder.kept_images if source.is_live else source.images,
                source.frames.pixel_ratio,
                None if names is None else [f"{source.name}/{name}" for name in names],
            )
            for path in folder.finish(finished):
                _options.say(args, f"wrote {path}")
    _print_objects(folder, _track_words.texts(args.out) if args.text else {})
    if folder.full:
        raise ConfigurationError(
            f"{'; '.join(folder.full)}. {args.out / RECORDS} has all frames, and --format coco needs no tracking again"
        )
    if stop is not None:
        raise stop
    return 0


def _by_words(
    args: argparse.Namespace, source: _video.VideoInput, stack: contextlib.ExitStack
) -> tuple[list[ObjectPrompt], Iterator[_track_words.Tracked] | None]:
    """Return the prompts found by words, now or by an earlier run.

    If the rules for words run now, return the prompts of the first frame with objects, and that frame and the later
    ones.
    """
    _, high = args.range or (None, None)
    start = _track_words.first_frame(args)
    names = ("--text-every", "--every", "--range")
    chosen_frames(source.frames.num_frames, args.text_every, start, high, args.every, names)  # before a server starts
    before = _track_words.found_before(args, source)
    if before is not None:
        if _track_words.rules_were_used(args):
            args.model = args.model or _task_options.family_for_words(None)
        return before, None
    if not args.overwrite or not (args.out / MANIFEST).exists():
        TrackFolder(args.out, {}, (), ()).check_unused()
    url = _server_for_all(args, stack)
    family = _track_words.family_of_rules(args, url)
    if family is not None:
        args.model = family
        tracked = _by_rules(args, source, url, stack)
        first = next(tracked)
        return _track_words.prompts(args), itertools.chain([first], tracked)
    args.model = args.model or _video.DEFAULT_FAMILY
    with _video.make_client(url, args.variant, args.timeout, _options.access(args), args.model) as tracker:
        return _track_words.search(args, source, start, high, url, tracker), None


def _by_rules(
    args: argparse.Namespace, source: _video.VideoInput, url: str | None, stack: contextlib.ExitStack
) -> Iterator[_track_words.Tracked]:
    return stack.enter_context(contextlib.closing(_track_words.track_by_rules(args, source, url)))


def _server_for_all(args: argparse.Namespace, stack: contextlib.ExitStack) -> str | None:
    """Return the URL of the server; a local one also serves the tracking, until the stack is closed."""
    urls = stack.enter_context(_server.server_urls(args))
    if args.local:
        args.local, args.model_repository, args.url = False, None, urls[0]
    return urls[0]


def make_plan(args: argparse.Namespace, prompts: Sequence[ObjectPrompt], num_frames: int | None) -> Plan:
    if args.every < 1:
        raise ConfigurationError(f"--every must be at least 1, not {args.every}")
    if args.reverse and num_frames is None:
        raise ConfigurationError("a stream cannot be tracked backwards: leave --reverse out")
    for prompt in prompts:
        if num_frames is not None and prompt.frame >= num_frames:
            raise PromptError(f"there is no frame {prompt.frame}: the video has the frames 0 to {num_frames - 1}")
        if prompt.frame % args.every:
            raise PromptError(f"frame {prompt.frame} is not tracked with --every {args.every}: prompt another frame")
    low, high = args.range or (None, None)
    end = high if num_frames is None else min(high if high is not None else num_frames, num_frames)
    prompted = [prompt.frame for prompt in prompts]
    if args.reverse:
        start = max(prompted) if high is None or end is None else (end - 1) // args.every * args.every
        frames: range | None = range(start, (low or 0) - 1, -args.every)
    else:
        start = min(prompted) if low is None else _track_words.first_frame(args)
        frames = None if end is None else range(start, end, args.every)
    if frames is not None and not frames:
        raise ConfigurationError(f"there is no frame to track from frame {start} on: give another --range")
    return Plan(start, frames)


def _track(
    args: argparse.Namespace,
    prompts: Sequence[ObjectPrompt],
    source: _video.VideoInput,
    plan: Plan,
    folder: TrackFolder,
) -> SamError | None:
    """Track the frames of a plan into a folder.

    Ctrl-C or an error ends a stream and is returned, so that the earlier frames are kept. A file can be tracked again,
    so both are raised.
    """
    try:
        with (
            _server.server_urls(args) as urls,
            _video.make_client(urls[0], args.variant, args.timeout, _options.access(args), args.model) as client,
            _video.opened(client, source.frames, quality=args.quality, every=args.every) as video,
        ):
            for prompt in prompts:
                prompt.send(video)
            count = None if plan.frames is None else len(plan.frames)
            keeps = source.is_live and any(form.needs_images for form in folder.formats)
            logits = folder.needs_logits
            tracked = video.propagate(start=plan.start, count=count, reverse=args.reverse, logits=logits)
            for frame, masks in tqdm(tracked, total=count, desc=source.name, unit="frame", disable=args.quiet):
                if keeps:
                    for image in source.images([frame]):
                        folder.keep_image(frame, image)
                folder.add(frame, masks)
    except KeyboardInterrupt:
        if source.is_live and folder.records:
            _options.say(args, f"stopped after {len(folder.records)} frames")
            return None
        raise
    except SamError as error:
        if source.is_live and folder.records:
            return error
        raise
    return None


def _parameters(args: argparse.Namespace, prompts: Sequence[ObjectPrompt], source: _video.VideoInput) -> dict[str, Any]:
    """Return all parameters that affect the masks. The error about changed parameters contains these names."""
    return {
        "video": source.identity,
        "prompts": [prompt.to_json() for prompt in prompts],
        "--range": args.range,
        "--reverse": args.reverse,
        "--every": args.every,
        "--quality": args.quality,
        "--model": args.model,
        "--variant": args.variant,
    }


def _print_objects(folder: TrackFolder, texts: dict[int, str]) -> None:
    records: dict[int, list[MaskRecord]] = defaultdict(list)
    for record in itertools.chain.from_iterable(folder.records.values()):
        records[record.object_id].append(record)
    for object_id in sorted(records):
        scores = [record.score for record in records[object_id] if record.area]
        score = sum(scores) / max(len(scores), 1)
        name = f" ({texts[object_id]})" if object_id in texts else ""
        print(f"object {object_id}{name}: in {len(scores)} of {len(folder.records)} frames, mean score {score:.3f}")


def _range(text: str) -> tuple[int | None, int | None]:
    low, colon, high = text.partition(":")
    if not colon or not all(part == "" or part.isdecimal() for part in (low, high)):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, for example 10:200")
    return int(low) if low else None, int(high) if high else None
