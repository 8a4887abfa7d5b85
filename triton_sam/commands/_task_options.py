"""The options of several commands, by task.

The tasks are points and boxes, the clean-up of masks, a search for everything (named like the parameters of the
official generators) or for words, and the tiles of large images.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..concepts.query import THRESHOLD
from ..errors import ConfigurationError
from ..families import FAMILIES
from ..masks.cleanup import Cleanup


def point(text: str) -> tuple[float, float, int]:
    """Parse ``X,Y`` or ``X,Y,LABEL``; the default label is 1, foreground."""
    values = numbers(text, (2, 3), "X,Y or X,Y,LABEL")
    label = values[2] if len(values) == 3 else 1
    if label not in (0, 1):
        raise argparse.ArgumentTypeError(f"{text!r}: the label must be 1 (foreground) or 0 (background)")
    return values[0], values[1], int(label)


def box(text: str) -> list[float]:
    """Parse ``X1,Y1,X2,Y2``."""
    return numbers(text, (4,), "X1,Y1,X2,Y2")


def numbers(text: str, counts: tuple[int, ...], form: str) -> list[float]:
    """Parse comma-separated numbers. ``form`` describes them in the error about another count."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in counts:
        raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
    return values


def add_cleanup(parser: argparse.ArgumentParser, *, of_prompts: bool = True) -> None:
    """Add the options of a Cleanup. cleanup_of() reads them.

    Args:
        of_prompts: whether the command has prompts. A search for everything has no box to clip to, and has its own
            option for small regions, ``--min-mask-region-area``.
    """
    group = parser.add_argument_group(
        "clean-up", "Without these options, masks equal those of the official predictor. The steps run in this order."
    )
    group.add_argument(
        "--max-hole-area",
        type=float,
        default=0.0,
        metavar="PIXELS",
        help="fill holes of at most this many pixels of the model's small mask (256 x 256, with SAM3 288 x 288)",
    )
    group.add_argument(
        "--max-sprinkle-area",
        type=float,
        default=0.0,
        metavar="PIXELS",
        help="drop parts of at most this many pixels of the small mask",
    )
    if of_prompts:
        group.add_argument("--clip-to-box", action="store_true", help="remove everything outside --box")
    group.add_argument(
        "--smooth", type=float, default=0.0, metavar="PIXELS", help="smooth the outline over this radius"
    )
    if of_prompts:
        group.add_argument(
            "--min-mask-region-area",
            type=float,
            default=0.0,
            metavar="PIXELS",
            help="fill holes and drop parts of fewer pixels of the image",
        )
    hit = "a foreground point hits" if of_prompts else "the point of the grid hits"
    group.add_argument("--keep-clicked", action="store_true", help=f"keep only the parts that {hit}")


def cleanup_of(args: argparse.Namespace, *, of_prompts: bool = True) -> Cleanup:
    """Return the Cleanup of the options; ``of_prompts`` as for add_cleanup()."""
    return Cleanup(
        max_hole_area=args.max_hole_area,
        max_sprinkle_area=args.max_sprinkle_area,
        clip_to_box=of_prompts and args.clip_to_box,
        smooth=args.smooth,
        min_mask_region_area=args.min_mask_region_area if of_prompts else 0.0,
        keep_clicked=args.keep_clicked,
    )


_SEARCH_OPTIONS: tuple[tuple[str, type, str, str], ...] = (
    ("points_per_side", int, "N", "points along one side of the image (official default: 32)"),
    (
        "pred_iou_thresh",
        float,
        "0..1",
        "keep masks with a higher predicted IoU (official default: 0.8, SAM1: 0.88)",
    ),
    (
        "stability_score_thresh",
        float,
        "0..1",
        "keep masks of at least this stability (official default: 0.95)",
    ),
    ("stability_score_offset", float, "LOGIT", "distance of the thresholds that the stability compares (default: 1)"),
    ("mask_threshold", float, "LOGIT", "logits above it are foreground (default: 0)"),
    ("box_nms_thresh", float, "0..1", "of two masks whose boxes have a higher IoU, drop one (default: 0.7)"),
    ("crop_n_layers", int, "N", "layers of crops in addition to the whole image; layer i has 4^i crops (default: 0)"),
    ("crop_nms_thresh", float, "0..1", "as --box-nms-thresh, for masks of different crops (default: 0.7)"),
    ("crop_overlap_ratio", float, "0..1", "overlap of crops as a fraction of the image (default: 0.341)"),
    ("crop_n_points_downscale_factor", int, "N", "divides the points per side from layer to layer (default: 1)"),
    ("min_mask_region_area", int, "PIXELS", "fill holes and drop parts of fewer pixels of the image (default: 0)"),
)
_SEARCH_SWITCHES = (
    ("use_m2m", True, "--use-m2m", "refine each mask once, with its logits as a prompt"),
    ("multimask_output", False, "--single-mask", "one candidate for each point instead of three"),
)


def add_search_parameters(parser: argparse.ArgumentParser) -> None:
    """Add the parameters as a group. The defaults are those of the family."""
    group = parser.add_argument_group(
        "automatic masks",
        "The parameters of the official mask generators. --pred-iou-thresh and\n--stability-score-thresh default to "
        "the values exported with the served model, if any.",
    )
    for name, kind, metavar, text in _SEARCH_OPTIONS:
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
    for name, value, flag, text in _SEARCH_SWITCHES:
        group.add_argument(flag, dest=name, action="store_const", const=value, help=text)


def search_parameters(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that the caller gave."""
    names = [name for name, *_ in (*_SEARCH_OPTIONS, *_SEARCH_SWITCHES)]
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


_FILTERS = ("threshold", "nms", "limit")
_LIMIT = "instances"
"""The name of the limit in the namespace. Some commands have another --limit."""


def add_words_group(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    return parser.add_argument_group("every instance of a concept (SAM3, exported with --concepts)")


def add_texts(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--text", action="append", metavar="WORDS", help='for example "traffic light"; repeat for more')


def add_word_filters(group: argparse._ArgumentGroup, limit: str = "--limit") -> None:
    """Add --threshold, --nms and the limit of instances, whose flag the command chooses."""
    group.add_argument(
        "--threshold", type=float, metavar="SCORE", help=f"lowest score of an instance (default: {THRESHOLD})"
    )
    group.add_argument(
        "--nms", type=float, metavar="IOU", help="drop an instance if its box overlaps a better one by more"
    )
    group.add_argument(limit, dest=_LIMIT, type=int, metavar="N", help="keep the N best instances of each text")


def word_filters(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given filters by their names in check_query()."""
    given = {"threshold": args.threshold, "nms": args.nms, "limit": getattr(args, _LIMIT)}
    return {name: given[name] for name in _FILTERS if given[name] is not None}


def family_for_words(given: str | None) -> str:
    """Return the family for words: the given one, else the first family that finds words."""
    able = [family.name for family in FAMILIES.values() if family.concepts]
    if given is not None and given not in able:
        raise ConfigurationError(f"{given} cannot find words: give --model {able[0]}, or leave it out")
    return given or able[0]


def add_tiles(group: Any) -> None:
    """Add the options for tiles to a parser or a group of a parser."""
    group.add_argument(
        "--level", type=int, default=0, metavar="N", help="level of the pyramid to read (default: 0, the largest)"
    )
    group.add_argument("--tile", type=int, default=1024, metavar="PIXELS", help="side of a tile (default: 1024)")
    group.add_argument("--overlap", type=int, default=256, metavar="PIXELS", help="overlap of tiles (default: 256)")


def add_shown(group: Any) -> None:
    """Add the options that select what is shown of a large image."""
    group.add_argument(
        "--channels", type=channels, default=(0, 1, 2), metavar="R,G,B", help="channels to show (default: 0,1,2)"
    )
    group.add_argument(
        "--index",
        type=position,
        action="append",
        default=[],
        metavar="AXIS=N",
        help="position along another axis, for example Z=10; repeat for more axes (default: 0)",
    )
    group.add_argument(
        "--stretch",
        type=percentiles,
        metavar="LOW,HIGH",
        help="percentiles of values of more than 8 bits that become black and white, for example 1,99 (default: the "
        "smallest and the largest value)",
    )


def position(text: str) -> tuple[str, int]:
    """Parse the name of an axis and a position along it."""
    axis, _, number = text.partition("=")
    if not (len(axis) == 1 and axis.isalpha() and number.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=N, for example Z=10")
    return axis.upper(), int(number)


def percentiles(text: str) -> tuple[float, float]:
    try:
        low, high = (float(word) for word in text.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not 0 <= low < high <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not two percentiles from 0 to 100, for example 1,99")
    return low, high


def channels(text: str) -> tuple[int, ...]:
    """Parse one or three channels; one channel is shown as grey."""
    words = text.split(",")
    if len(words) not in (1, 3) or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not one channel or three, for example 0,1,2")
    return tuple(int(word) for word in words) * (1 if len(words) == 3 else 3)
