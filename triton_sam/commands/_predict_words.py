"""The options of `triton-sam predict` that find every instance of words or example boxes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..concepts.query import MASK_THRESHOLD, check_query
from ..errors import ConfigurationError, PromptError
from ..inputs.images import open_image
from ..tracks.prompts import read_mask
from . import _task_options
from ._predict_files import Source
from ._task_options import box

_MASKS = ("example_mask", "not_example_mask")
_CLICKS = ("point", "box", "mask_input", "logits")


def add_options(parser: argparse.ArgumentParser) -> None:
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


def are_wanted(args: argparse.Namespace) -> bool:
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


def read(args: argparse.Namespace) -> dict[str, Any]:
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


def check(asked: Mapping[str, Any], sources: Sequence[Source]) -> None:
    """Check the arguments from read() against the images before a request is sent."""
    query = check_query(**{name: value for name, value in asked.items() if name != "example"})
    example = asked["example"]
    for image in [each.content for each in sources] if example is None else [example]:
        query.check_inside(open_image(image).size)


def _masks(args: argparse.Namespace) -> dict[str, Any]:
    shown, others = ([read_mask(file) for file in getattr(args, name) or []] for name in _MASKS)
    if not shown and not others:
        return {}
    return {"masks": [*shown, *others], "mask_labels": [1] * len(shown) + [0] * len(others)}
