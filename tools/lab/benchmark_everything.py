#!/usr/bin/env python3
"""Measure how fast the built-in model finds all objects of an image, and how much a search delays other users' clicks.

The official generator, this process, a client that sends clicks, and the session model that searches by itself take
turns. Example:

    python tools/lab/benchmark_everything.py --points 16,32
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from triton_sam._common import strict_json
from triton_sam._common.bundle import bundled
from triton_sam.benchmark.everything import format_clicks, format_searches, measure_clicks, measure_searches
from triton_sam.errors import SamError
from triton_sam.local_server import LocalServer


def main() -> int:
    """Run the measurement and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=Path, metavar="FILE", help="image (default: a photo of this project)")
    parser.add_argument("--points", type=_counts, default=(16,), metavar="N,N", help="points a side (default: 16)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="rounds (default: 2)")
    parser.add_argument("--clicks", type=int, default=60, metavar="N", help="clicks in each situation (default: 60)")
    parser.add_argument("--no-searches", action="store_true", help="measure clicks alone")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the result alone")
    args = parser.parse_args()
    if args.rounds < 1 or args.clicks < 2:
        parser.error("--rounds must be at least 1, --clicks at least 2")
    image = args.image or bundled("test/images") / "coffee.jpg"

    def say(text: str) -> None:
        if not args.quiet:
            print(text, file=sys.stderr)

    try:
        with LocalServer(bundled("model_repository")) as server:
            clicks = measure_clicks(server, image, args.clicks, max(args.points))
            say(format_clicks(clicks))
            searches = []
            if not args.no_searches:
                searches = list(measure_searches(server, image, args.points, args.rounds, say))
    except SamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.json:
        figures = {"searches": [asdict(one) for one in searches], "clicks": [asdict(one) for one in clicks]}
        print(strict_json.dumps(figures, indent=1))
    else:
        print(format_clicks(clicks))
        if searches:
            print(f"\n{format_searches(searches)}")
    return 0


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise ValueError
    return counts


if __name__ == "__main__":
    sys.exit(main())
