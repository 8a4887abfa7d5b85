"""The video source and the video client of a command that tracks objects."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from PIL import Image

from ..errors import ConfigurationError, ModelNotReadyError
from ..families import tracking_families
from ..inputs.images import open_image
from ..inputs.video import FrameSource, open_frames
from ..inputs.video.base import BEST_QUALITY
from ..tracks.overlay_video import DEFAULT_RATE
from . import _options

DEFAULT_FAMILY = "sam2"
"""The family whose video models are used by default."""


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
    if path.is_dir():
        return VideoInput(path.resolve().name, frames, DEFAULT_RATE, False, identity)
    return VideoInput(path.stem, frames, frames.rate or DEFAULT_RATE, False, identity | {"bytes": path.stat().st_size})


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
    _options.add_repository(parser)


def make_client(
    url: str | None, variant: str | None, timeout: float, access: dict[str, Any], family: str = DEFAULT_FAMILY
) -> Any:
    """Return a video client. Tests replace this function."""
    from ..client.video import SAM2VideoClient

    return SAM2VideoClient(url, variant, model_type=family, timeout=timeout, **access)


@contextlib.contextmanager
def opened(client: Any, source: Any, **options: Any) -> Iterator[Any]:
    """Open a video in a client."""
    with contextlib.ExitStack() as stack:
        try:
            video = stack.enter_context(client.open(source, **options))
        except ModelNotReadyError as error:
            raise ModelNotReadyError(f"{error} - {HOW_TO_GET_MODELS}") from error
        yield video


HOW_TO_GET_MODELS = (
    "videos need models beside the model pair: `triton-sam setup sam2 tiny --video` downloads and exports them"
)
