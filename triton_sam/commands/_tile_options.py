"""The options that say how a large image is cut into tiles."""

from __future__ import annotations

import argparse
from typing import Any


def add_tiles(group: Any) -> None:
    """Add the options to a parser or to a group of one."""
    group.add_argument("--level", type=int, default=0, metavar="N", help="level to search (default: 0, the largest)")
    group.add_argument("--tile", type=int, default=1024, metavar="PIXELS", help="side of a tile (default: 1024)")
    group.add_argument("--overlap", type=int, default=256, metavar="PIXELS", help="overlap of tiles (default: 256)")
    group.add_argument(
        "--channels", type=channels, default=(0, 1, 2), metavar="R,G,B", help="channels to show (default: 0,1,2)"
    )


def channels(text: str) -> tuple[int, ...]:
    """Return three channels; one becomes grey.

    Raises:
        argparse.ArgumentTypeError: the text is not one channel or three.
    """
    words = text.split(",")
    if len(words) not in (1, 3) or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not one channel or three, for example 0,1,2")
    return tuple(int(word) for word in words) * (1 if len(words) == 3 else 3)
