"""`track --text`: objects that are found by words, and the folder that stores them.

By the rules for words in videos, each frame is searched, and the rules decide about the objects.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from .._common import strict_json
from .._common.files import atomic_write
from ..client.video.words import FoundInVideo
from ..concepts.instances import NEW_THRESHOLD, THRESHOLD
from ..concepts.query import check_parameters
from ..concepts.video_rules import VideoRules
from ..errors import ConfigurationError, PromptError
from ..families import get_family
from ..masks import mask_to_png
from ..masks.segment import VideoSegment
from ..tracks.folder import TrackFolder
from ..tracks.prompts import ObjectPrompt
from . import _options, _task_options, _video
from ._video import VideoInput

FOUND = "found"
"""Folder with found.json and the masks of the objects found by words."""
_FILE = "found.json"
RULES = "rules"
"""The parameter in found.json that says whether the rules for words in videos found the objects."""
_ONLY_WITH_TEXT = {
    "text_every": "--text-every",
    "threshold": "--threshold",
    "new_threshold": "--new-threshold",
    "limit": "--limit",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "objects by words",
        "SAM3, exported with --concepts, finds the objects. The video model of --model tracks them (default:\n"
        "SAM3's if served, else SAM2's). Streams are not supported.",
    )
    _task_options.add_texts(group)
    group.add_argument(
        "--text-every",
        type=int,
        metavar="N",
        help="search every N frames for objects that appear later (default: with SAM3's tracker every frame, by its "
        "rules for videos; else only the first frame)",
    )
    group.add_argument(
        "--threshold", type=float, metavar="SCORE", help=f"lowest score of an instance (default: {THRESHOLD})"
    )
    group.add_argument(
        "--new-threshold",
        type=float,
        metavar="SCORE",
        help=f"lowest score of a new object beside tracked ones (default: {NEW_THRESHOLD})",
    )
    group.add_argument("--limit", type=int, metavar="N", help="keep the N best instances of each text in a frame")


def are_wanted(args: argparse.Namespace) -> bool:
    """Return whether the objects are found by words."""
    if not args.text:
        given = [flag for name, flag in _ONLY_WITH_TEXT.items() if getattr(args, name) is not None]
        if given:
            raise ConfigurationError(f"{given[0]} is for --text")
        return False
    if args.prompts or args.prompt_file is not None:
        raise PromptError("give --text or prompts of objects, not both")
    if args.reverse:
        raise ConfigurationError("words are searched from the first frame on: leave --reverse out")
    check_parameters(args.text, None, None, _details(args))
    if args.new_threshold is not None and not 0 <= args.new_threshold <= 1:
        raise PromptError(f"--new-threshold must be within 0 and 1, not {args.new_threshold}")
    return True


def first_frame(args: argparse.Namespace) -> int:
    """Return the first multiple of --every in --range."""
    low: int = (args.range or (None, None))[0] or 0
    every: int = max(args.every, 1)  # other checks refuse 0
    return -(-low // every) * every


def make_finder(url: str | None, timeout: float, access: dict[str, Any]) -> Any:
    """Return a client that finds words."""
    from ..client.sync import SAM2TritonClient

    return SAM2TritonClient(url, _task_options.family_for_words(None), timeout=timeout, **access)


def found_before(args: argparse.Namespace, source: VideoInput) -> list[ObjectPrompt] | None:
    """Return the prompts that an earlier run with the same parameters found; None without such a run."""
    if args.overwrite:
        return None
    before, prompts, _ = _read(args.out)
    if before and {**before, RULES: None} != {**_parameters(args, source), RULES: None}:
        raise ConfigurationError(
            f"{args.out} has the results of another --text, of another video or of other options: "
            "give another --out, or --overwrite to start again"
        )
    return prompts if before else None


def prompts(args: argparse.Namespace) -> list[ObjectPrompt]:
    """Return the prompts of the found objects in the folder of the command."""
    return _read(args.out)[1]


def _read(folder: Path) -> tuple[dict[str, Any], list[ObjectPrompt], dict[int, str]]:
    """Return the parameters, the prompts, and the text of each object by id; all empty without a search."""
    path = folder / FOUND / _FILE
    if not path.exists():
        return {}, [], {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = document["objects"]
        found = [ObjectPrompt(row["object_id"], row["frame"], mask=path.with_name(row["mask"])) for row in rows]
        return dict(document["parameters"]), found, {row["object_id"]: row["text"] for row in rows}
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"{path} is not from `triton-sam track --text`: give another --out") from error


def search(
    args: argparse.Namespace, source: VideoInput, start: int, stop: int | None, url: str | None, tracker: Any
) -> list[ObjectPrompt]:
    """Find the objects of a video and store them in the folder of the command.

    Args:
        stop: the frame after the last one; None: the end of the video.
    """
    from ..client.video.words import find_in_video

    new = {} if args.new_threshold is None else {"new_threshold": args.new_threshold}
    numbers = {"every": args.text_every, "start": start, "stop": stop, "step": args.every, "quality": args.quality}
    with make_finder(url, args.timeout, _options.access(args)) as finder:
        objects = find_in_video(
            finder,
            tracker,
            args.video,
            args.text,
            on_search=lambda frame, count: _options.say(args, f"searched frame {frame}: {count} objects so far"),
            **numbers,
            **new,
            **_details(args),
        )
    if not objects:
        raise not_shown(args, source, ", or search more frames with --text-every")
    keep(args, source, objects)
    return prompts(args)


def texts(folder: Path) -> dict[int, str]:
    """Return the text of each object found by words, by id; empty without a search."""
    return _read(folder)[2]


def not_shown(args: argparse.Namespace, source: VideoInput, more: str = "") -> PromptError:
    """Return the error for a video in which nothing is found."""
    return PromptError(
        f"{source.name} shows no {' or '.join(args.text)} in the searched frames: lower --threshold{more}"
    )


def keep(
    args: argparse.Namespace,
    source: VideoInput,
    objects: Sequence[Any],
    earlier: Sequence[dict[str, Any]] = (),
    rules: bool = False,
) -> list[dict[str, Any]]:
    """Store found objects in the folder of the command, and return the rows of found.json.

    Args:
        earlier: the rows of objects that were stored before.
    """
    folder = args.out / FOUND
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(earlier)
    for each in objects:
        path = folder / f"{each.object_id}.png"
        atomic_write(path, mask_to_png(each.mask))
        facts = {"object_id": each.object_id, "frame": each.frame, "text": each.text, "score": each.score}
        rows.append({**facts, "box": list(each.box), "mask": path.name})
    parameters = {**_parameters(args, source), **({RULES: True} if rules else {})}
    document = {"parameters": parameters, "objects": rows}
    atomic_write(folder / _FILE, strict_json.dumps(document, indent=1).encode())
    return rows


def _parameters(args: argparse.Namespace, source: VideoInput) -> dict[str, Any]:
    names = ("text", "text_every", "threshold", "new_threshold", "limit", "range", "every", "quality", "variant")
    given: dict[str, Any] = json.loads(strict_json.dumps({name: getattr(args, name) for name in names}))
    return {"video": json.loads(strict_json.dumps(source.identity)), **given}


def _details(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given numeric options by their names in find_in_video()."""
    names = ("threshold", "limit")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


Tracked = tuple[int, Mapping[int, VideoSegment]]
"""The index of a frame, and its masks by object id."""


def rules_were_used(args: argparse.Namespace) -> bool:
    """Return whether the objects in the folder of an earlier run come from these rules."""
    return bool(_read(args.out)[0].get(RULES))


def family_of_rules(args: argparse.Namespace, url: str | None) -> str | None:
    """Return the family whose tracker follows the objects by these rules, and say which rules run; None for others.

    They run if the family finds words and has video models on the server, unless the caller gives another one, or the
    distance of searches.
    """
    chosen = _task_options.family_for_words(None)
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


def track_by_rules(
    args: argparse.Namespace, source: _video.VideoInput, url: str | None
) -> Generator[Tracked, None, None]:
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
    start = first_frame(args)
    count = None if high is None else len(range(start, high, args.every))
    access = _options.access(args)
    rows: list[dict[str, Any]] = []
    empty: dict[int, VideoSegment] = {}
    width, height = source.frames.size
    with (
        make_finder(url, args.timeout, access) as finder,
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
                FoundInVideo(object_id, frame, each.label, each.score, box, each.mask)
                for object_id, each in found.items()
                if object_id not in empty and (box := each.box) is not None
            ]
            if new:
                rows = keep(args, source, new, rows, rules=True)
            for each in new:
                nothing = np.zeros((height, width), bool)
                empty[each.object_id] = VideoSegment(nothing, 0.0, None, object_id=each.object_id)
            if empty:
                yield frame, {object_id: found.get(object_id, absent) for object_id, absent in empty.items()}
    if not empty:
        raise not_shown(args, source)


def write_tracked(tracked: Iterable[Tracked], folder: TrackFolder, frames: Sequence[int]) -> None:
    """Write the masks of frames as they come; in the frames before the first object, its mask is empty."""
    for frame, masks in tracked:
        if not folder.records:
            nothing = {each: VideoSegment(np.zeros_like(seen.mask), 0.0, None) for each, seen in masks.items()}
            for earlier in frames:
                if earlier < frame:
                    folder.add(earlier, nothing)
        folder.add(frame, masks)
