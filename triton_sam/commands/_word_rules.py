"""`track --text` by the rules for words in videos: each frame is searched, and the rules decide about the objects."""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from ..client.video.words import FoundObject
from ..concepts.video_rules import VideoRules
from ..families import get_family
from ..masks.segment import VideoSegment
from ..tracks.folder import TrackFolder
from . import _options, _track_words, _video, _words_options

Tracked = tuple[int, Mapping[int, VideoSegment]]
"""The index of a frame, and its masks by object id."""


def were_used(args: argparse.Namespace) -> bool:
    """Return whether the objects in the folder of an earlier run come from these rules."""
    path = args.out / _track_words.FOUND / "found.json"
    return path.exists() and bool(json.loads(path.read_text(encoding="utf-8"))["parameters"].get(_track_words.RULES))


def family(args: argparse.Namespace, url: str | None) -> str | None:
    """Return the family whose tracker follows the objects by these rules, and say which rules run; None for others.

    They run if the family finds words and has video models on the server, unless the caller gives another one, or the
    distance of searches.
    """
    chosen = _words_options.family_for_words(None)
    if args.model not in (None, chosen) or args.text_every is not None or get_family(chosen).tracking is None:
        runs = False
    elif args.model == chosen or args.variant is not None:
        runs = args.model == chosen
    else:
        with _video.make_client(url, None, args.timeout, _options.access(args), chosen) as tracker:
            runs = tracker.is_ready()
    if runs:
        _options.say(args, f"words are searched in every frame, by the rules of {get_family(chosen).label} for videos")
        return chosen
    every = "the first frame" if args.text_every is None else f"every {args.text_every} frames"
    _options.say(args, f"words are searched in {every}; the rules of {get_family(chosen).label} for videos do not run")
    return None


def track(args: argparse.Namespace, source: _video.VideoInput, url: str | None) -> Generator[Tracked, None, None]:
    """Find and follow the objects of a video, and store the found objects in the folder of the command.

    Yields:
        The index of a frame and the masks of the objects found until then, from the first frame with an object on. The
        masks of objects that are not visible are empty.

    Raises:
        PromptError: no object is found.
    """
    from ..client.video.word_tracking import track_words

    given = {"score_threshold_detection": args.threshold, "new_det_thresh": args.new_threshold}
    rules = VideoRules(**{name: value for name, value in given.items() if value is not None})
    _, high = args.range or (None, None)
    start = _track_words.first_frame(args)
    count = None if high is None else len(range(start, high, args.every))
    access = _options.access(args)
    rows: list[dict[str, Any]] = []
    empty: dict[int, VideoSegment] = {}
    width, height = source.frames.size
    with (
        _track_words.make_finder(url, args.timeout, access) as finder,
        _video.make_client(url, args.variant, args.timeout, access, args.model) as tracker,
        _video.opened(tracker, source.frames, quality=args.quality, every=args.every) as video,
        tqdm(desc=source.name, total=count, unit="frame", disable=args.quiet) as bar,
    ):

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        tracked = track_words(
            finder,
            video,
            args.text,
            start=start,
            count=count,
            rules=rules,
            limit=args.limit,
            on_progress=show,
        )
        for frame, found in tracked:
            new = [
                FoundObject(object_id, frame, each.label, each.score, box, each.mask)
                for object_id, each in found.items()
                if object_id not in empty and (box := each.box) is not None
            ]
            if new:
                rows = _track_words.keep(args, source, new, rows, rules=True)
            for each in new:
                nothing = np.zeros((height, width), bool)
                empty[each.object_id] = VideoSegment(nothing, 0.0, None, object_id=each.object_id)
            if empty:
                yield frame, {object_id: found.get(object_id, absent) for object_id, absent in empty.items()}
    if not empty:
        raise _track_words.not_shown(args, source)


def write(tracked: Iterable[Tracked], folder: TrackFolder, frames: Sequence[int]) -> None:
    """Write the masks of frames as they come; in the frames before the first object, its mask is empty."""
    for frame, masks in tracked:
        if not folder.records:
            nothing = {each: VideoSegment(np.zeros_like(seen.mask), 0.0, None) for each, seen in masks.items()}
            for earlier in frames:
                if earlier < frame:
                    folder.add(earlier, nothing)
        folder.add(frame, masks)
