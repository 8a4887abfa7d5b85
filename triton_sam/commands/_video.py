"""The video source, the video client and the prompts of a command that tracks objects."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from PIL import Image

from ..errors import ConfigurationError, ModelNotReadyError, PromptError
from ..families import tracking_families
from ..inputs.images import open_image
from ..inputs.names import name_of
from ..inputs.video import FrameSource, open_frames
from ..inputs.video.base import BEST_QUALITY
from ..tracks.formats import DEFAULT_RATE
from ..tracks.prompts import ObjectPrompt, merge, read_prompts
from . import _options
from ._task_options import numbers

DEFAULT_FAMILY = "sam2"


@dataclass(frozen=True)
class VideoInput:
    """The frames of a command.

    Args:
        is_live: whether the source is a stream, which can be read only once.
    """

    name: str
    frames: FrameSource
    rate: Fraction
    is_live: bool
    identity: dict[str, Any]

    def images(self, frames: Sequence[int]) -> Iterator[Image.Image]:
        """Read frames again, one at a time."""
        for index in frames:
            frame = self.frames.frame(index)
            if frame is not None:
                yield open_image(frame.content)


def open_input(text: str, quality: int | None = None) -> VideoInput:
    """Open the source of a command: a file, a folder, a camera number, a URL, or "-" for standard input."""
    if quality is not None and not 1 <= quality <= BEST_QUALITY:
        raise ConfigurationError(
            f"--quality must be 1 to {BEST_QUALITY}, not {quality}: leave it out for frames without loss"
        )
    if text == "-":
        return _live("stdin", open_frames(sys.stdin.buffer, quality))
    if text.isdecimal() and not Path(text).exists():
        return _live(f"camera {text}", open_frames(int(text), quality))
    frames = open_frames(text, quality)
    if frames.num_frames is None:
        return _live(text, frames)
    path = Path(text)
    identity: dict[str, Any] = {"name": path.resolve().name, "frames": frames.num_frames, "size": list(frames.size)}
    if frames.names is not None:
        identity["images"] = _fingerprint([path / name for name in frames.names])
        return VideoInput(path.resolve().name, frames, DEFAULT_RATE, False, identity)
    return VideoInput(path.stem, frames, frames.rate or DEFAULT_RATE, False, identity | {"bytes": path.stat().st_size})


def _fingerprint(files: Sequence[Path]) -> str:
    """Return a hash of the names and sizes of all files, and of the content of the first, the middle and the last."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{name_of(file.name)} {file.stat().st_size}\n".encode("utf-8", "surrogateescape"))
    for file in (files[0], files[len(files) // 2], files[-1]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _live(name: str, frames: FrameSource) -> VideoInput:
    return VideoInput(name, frames, DEFAULT_RATE, True, {"name": name, "size": list(frames.size)})


def add_video_client(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the video model and the server."""
    parser.add_argument("--model", choices=tracking_families(), help=f"model family (default: {DEFAULT_FAMILY})")
    _options.add_spellings(
        parser,
        "--name",
        "--variant",
        "--model-name",
        dest="variant",
        metavar="VARIANT",
        help="variant to use, for example sam2.1_large",
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="time limit of each call (default: 120)"
    )
    _options.add_url(parser)
    _options.add_access(parser)
    _options.add_local(parser)
    _options.add_repository(parser, _options.OF_LOCAL)


def make_client(
    url: str | None, variant: str | None, timeout: float, access: dict[str, Any], family: str = DEFAULT_FAMILY
) -> Any:
    """Return a video client. Tests replace this function."""
    from ..client.video import SAM2VideoClient

    return SAM2VideoClient(url, variant, model_type=family, timeout=timeout, **access)


@contextlib.contextmanager
def opened(client: Any, source: Any, **options: Any) -> Iterator[Any]:
    try:
        opening = client.open(source, **options)
    except ModelNotReadyError as error:
        raise ModelNotReadyError(f"{error} - {HOW_TO_GET_MODELS}") from error
    with opening as video:
        yield video


HOW_TO_GET_MODELS = (
    "videos need models beside the model pair: `triton-sam setup sam2 --video` downloads and exports them"
)


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
