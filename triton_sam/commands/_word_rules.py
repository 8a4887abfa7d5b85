"""`track --text` by the rules for words in videos: each frame is searched, and the rules decide about the objects."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from ..client.video.words import FoundObject
from ..concepts.video_rules import VideoRules
from ..families import get_family
from ..masks.rle import rle_to_mask
from ..masks.segment import VideoSegment
from ..tracks.folder import TrackFolder
from ..tracks.prompts import ObjectPrompt
from ..tracks.records import MaskRecord
from . import _options, _track_words, _video, _words_options


@dataclass(frozen=True, eq=False)
class Results:
    """The masks of a whole video.

    Args:
        prompts: the masks of all objects in their first frames.
        records: the visible objects of each frame by id.
        size: width and height of the video.
    """

    prompts: list[ObjectPrompt]
    records: dict[int, dict[int, MaskRecord]]
    size: tuple[int, int]

    def write(self, folder: TrackFolder, frames: Sequence[int] | None) -> None:
        """Write the masks of frames; those of objects that are not visible are empty."""
        ids = sorted({prompt.object_id for prompt in self.prompts})
        for frame in frames or ():
            visible = self.records.pop(frame, {})  # the folder keeps its own records
            folder.add(frame, {each: self._segment(frame, each, visible.get(each)) for each in ids})

    def _segment(self, frame: int, object_id: int, record: MaskRecord | None) -> VideoSegment:
        width, height = self.size
        if record is None:
            return VideoSegment(np.zeros((height, width), bool), 0.0, None, object_id=object_id, frame=frame)
        mask, score = rle_to_mask(record.rle), record.object_score
        return VideoSegment(mask, record.score, None, object_id=object_id, frame=frame, object_score=score)


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


def track(args: argparse.Namespace, source: _video.VideoInput, url: str | None) -> Results:
    """Find and follow the objects of a video, and store the found objects in the folder of the command."""
    from ..client.video.word_tracking import track_words

    given = {"score_threshold_detection": args.threshold, "new_det_thresh": args.new_threshold}
    rules = VideoRules(**{name: value for name, value in given.items() if value is not None})
    _, high = args.range or (None, None)
    start = _track_words.first_frame(args)
    count = None if high is None else len(range(start, high, args.every))
    access = _options.access(args)
    records: dict[int, dict[int, MaskRecord]] = defaultdict(dict)
    objects: dict[int, FoundObject] = {}
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
            for object_id, each in found.items():
                records[frame][object_id] = MaskRecord.of(frame, object_id, each)
                if object_id not in objects and (box := each.box) is not None:
                    objects[object_id] = FoundObject(object_id, frame, each.label, each.score, box, each.mask)
    ordered = [objects[object_id] for object_id in sorted(objects)]
    return Results(_track_words.keep(args, source, ordered, rules=True), dict(records), source.frames.size)
