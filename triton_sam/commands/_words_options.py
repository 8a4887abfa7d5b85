"""The options of a search for words, shared by several commands."""

from __future__ import annotations

import argparse
from typing import Any

from ..concepts.query import THRESHOLD
from ..errors import ConfigurationError
from ..families import FAMILIES

_FILTERS = ("threshold", "nms", "limit")
_LIMIT = "instances"
"""The name of the limit in the namespace. Some commands have another --limit."""


def add_group(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the group of these options and return it."""
    return parser.add_argument_group("every instance of a concept (SAM3, exported with --concepts)")


def add_texts(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--text", action="append", metavar="WORDS", help='for example "traffic light"; repeat for more')


def add_filters(group: argparse._ArgumentGroup, limit: str = "--limit") -> None:
    """Add --threshold, --nms and the limit of instances, whose flag the command chooses."""
    group.add_argument(
        "--threshold", type=float, metavar="SCORE", help=f"lowest score of an instance (default: {THRESHOLD})"
    )
    group.add_argument(
        "--nms", type=float, metavar="IOU", help="drop an instance if its box overlaps a better one by more"
    )
    group.add_argument(limit, dest=_LIMIT, type=int, metavar="N", help="keep the N best instances of each text")


def filters(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given filters by their names in check_query()."""
    given = {"threshold": args.threshold, "nms": args.nms, "limit": getattr(args, _LIMIT)}
    return {name: given[name] for name in _FILTERS if given[name] is not None}


def family_for_words(given: str | None) -> str:
    """Return the family for words: the given one, else the first family that finds words."""
    able = [family.name for family in FAMILIES.values() if family.concepts]
    if given is not None and given not in able:
        raise ConfigurationError(f"{given} cannot find words: give --model {able[0]}, or leave it out")
    return given or able[0]
