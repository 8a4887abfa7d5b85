"""The options for cutting a large image into tiles."""

from __future__ import annotations

import argparse
from typing import Any


def add_tiles(group: Any) -> None:
    """Add the options to a parser or a group of a parser."""
    group.add_argument("--level", type=int, default=0, metavar="N", help="level to search (default: 0, the largest)")
    group.add_argument("--tile", type=int, default=1024, metavar="PIXELS", help="side of a tile (default: 1024)")
    group.add_argument("--overlap", type=int, default=256, metavar="PIXELS", help="overlap of tiles (default: 256)")
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
    """Parse two percentiles."""
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
