#!/usr/bin/env python3
"""Measure how fast SAM2 tracks objects: the official video predictor, this process and a local Triton, in turns.

Without --checkpoint, the weights are random: they take as long as trained ones. Example:

    python tools/lab/benchmark_sam2_video.py --size tiny --image-size 512 --objects 1,4
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from triton_sam._common import strict_json
from triton_sam.benchmark.video import FIRST_COUNTED, VideoBenchmark, format_speeds, measure_video
from triton_sam.errors import SamError
from triton_sam.families import get_family, tracking_families


def main() -> int:
    """Run the measurement and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tracking_families(), default="sam2", help="model family (default: sam2)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="official checkpoint")
    parser.add_argument(
        "--size", help="size of the model (default: from the checkpoint's name, else the family's for random weights)"
    )
    parser.add_argument("--image-size", type=int, default=1024, metavar="PIXELS", help="default: 1024")
    parser.add_argument("--objects", type=_counts, default=(1, 4), metavar="N,N", help="default: 1,4")
    parser.add_argument("--frames", type=int, default=20, metavar="N", help="frames of each clip (default: 20)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="clips (default: 2)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the result alone")
    args = parser.parse_args()
    if args.frames <= FIRST_COUNTED or args.rounds < 1:
        parser.error(
            f"--frames must be above {FIRST_COUNTED}, since the first frames do not count; --rounds at least 1"
        )
    family = get_family(args.model)
    model = family.find_size(args.size).model if args.size or args.checkpoint is None else None
    settings = VideoBenchmark(
        args.checkpoint, model, args.image_size, args.frames, args.rounds, args.objects, family.name
    )
    try:
        speeds = measure_video(settings, progress=not args.quiet)
    except SamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    listed = [{**asdict(speed), "frames_per_second": speed.frames_per_second} for speed in speeds]
    print(strict_json.dumps(listed, indent=1) if args.json else format_speeds(speeds))
    return 0


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise ValueError
    return counts


if __name__ == "__main__":
    sys.exit(main())
