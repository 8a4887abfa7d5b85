"""The options of `track` that prompt objects. Their order matters."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import PromptError
from ..tracks.prompts import ObjectPrompt, merge, read_prompts
from ._task_options import numbers


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """Add --object, --point, --negative-point, --box, --mask and --prompts."""
    group = parser.add_argument_group(
        "prompts",
        "FRAME counts from 0. X and Y are pixels of the video. Each prompt belongs to the --object before it,\n"
        "by default to object 1. Points and a box of one object in one frame are one prompt.",
    )
    for flag, kind, parse, metavar, text in (
        ("--object", "object", _object_id, "ID", "number, from 1, of the object of the prompts that follow"),
        ("--point", "point", _at_frame(2), "FRAME:X,Y", "a point on the object"),
        ("--negative-point", "negative", _at_frame(2), "FRAME:X,Y", "a point outside the object"),
        ("--box", "box", _at_frame(4), "FRAME:X1,Y1,X2,Y2", "a box around the object"),
        ("--mask", "mask", _mask, "FRAME:FILE", "an image of the video's size, non-zero on the object"),
    ):
        group.add_argument(flag, dest="prompts", action=_Collect, kind=kind, type=parse, metavar=metavar, help=text)
    group.add_argument(
        "--prompts",
        dest="prompt_file",
        type=Path,
        metavar="JSON",
        help='instead of the options above: a list such as [{"object_id": 1, "frame": 0, "points": [[210, 350]], '
        '"labels": [1]}]; further keys: box, mask',
    )


def collected(args: argparse.Namespace) -> list[ObjectPrompt]:
    """Return the prompts of the command line, one for each object and frame, in the order of the options."""
    if args.prompt_file is not None:
        if args.prompts:
            raise PromptError("give --prompts or the options --object, --point, --box and --mask, not both")
        return merge(read_prompts(args.prompt_file))
    prompts: list[ObjectPrompt] = []
    current, ids = 1, []
    for kind, value in args.prompts or ():
        if kind == "object":
            current = value
            ids.append(value)
        else:
            prompts.append(_prompt(current, kind, *value))
    if not prompts:
        raise PromptError("nothing to track: give --point FRAME:X,Y, --box, --mask or --prompts FILE")
    bare = sorted(set(ids) - {prompt.object_id for prompt in prompts})
    if bare:
        raise PromptError(f"--object {bare[0]} has no prompt: give --point, --box or --mask after it")
    return merge(prompts)


class _Collect(argparse.Action):
    """Appends (kind, value) to one list for several options, to keep their order."""

    def __init__(self, *args: Any, kind: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._kind = kind

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse passes it
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        before = getattr(namespace, self.dest) or []
        setattr(namespace, self.dest, [*before, (self._kind, values)])


def _prompt(object_id: int, kind: str, frame: int, value: Any) -> ObjectPrompt:
    if kind == "box":
        return ObjectPrompt(object_id, frame, box=value)
    if kind == "mask":
        return ObjectPrompt(object_id, frame, mask=value)
    return ObjectPrompt(object_id, frame, points=(value,), labels=(1 if kind == "point" else 0,))


def _object_id(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of an object: the first is 1")
    return int(text)


def _split(text: str, form: str) -> tuple[int, str]:
    frame, colon, rest = text.partition(":")
    if not colon or not frame.isdecimal() or not rest:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not {form}, for example 0:{'210,350' if ',' in form else 'a.png'}"
        )
    return int(frame), rest


def _at_frame(count: int) -> Any:
    """Return a function that parses FRAME:X,Y or FRAME:X1,Y1,X2,Y2 into (frame, numbers)."""
    form = "FRAME:X,Y" if count == 2 else "FRAME:X1,Y1,X2,Y2"

    def parse(text: str) -> tuple[int, tuple[float, ...]]:
        frame, rest = _split(text, form)
        return frame, tuple(numbers(rest, (count,), form.partition(":")[2]))

    return parse


def _mask(text: str) -> tuple[int, Path]:
    frame, rest = _split(text, "FRAME:FILE")
    return frame, Path(rest)
