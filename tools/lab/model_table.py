#!/usr/bin/env python3
"""Print the table of models in docs/reference/models.md: sizes, and latencies of encoder and decoder on a local Triton.

Every size is exported with seeded random weights, which have the same file size and cost as official ones. Examples:

    python tools/lab/model_table.py sam1/vit_b sam2/tiny
    python tools/lab/model_table.py --keep exports --export-only     # other programs may run meanwhile
    python tools/lab/model_table.py --keep exports                   # no other program should run now
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

from triton_sam.benchmark import model_table
from triton_sam.commands._options import run_script
from triton_sam.errors import ConfigurationError


def main() -> int:
    """Parse the command line, export, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", metavar="FAMILY/SIZE", help="for example sam1/vit_b (default: all)")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="smallest number of measurements (default: 3)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder of exports to use and to keep")
    parser.add_argument("--export-only", action="store_true", help="fill the folder of --keep without measuring")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the table and errors only")
    args = parser.parse_args()
    return run_script(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Measure one size after another. Without --keep, remove each export before the next, because they are large."""
    if args.rounds < 1:
        raise ConfigurationError("--rounds must be at least 1")
    if args.export_only and args.keep is None:
        raise ConfigurationError("--export-only needs a folder: give --keep DIR")
    rows = []
    for size in [model_table.parse_size(text) for text in args.sizes] or model_table.official_sizes():
        with contextlib.ExitStack() as stack:
            folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton_sam_table_")))
            weights = model_table.prepare(size, folder, progress=not args.quiet)
            if not args.export_only:
                rows.append(model_table.measure(size, weights, rounds=args.rounds))
                if not args.quiet:  # a run over all sizes takes long and may be interrupted
                    print(model_table.table(rows[-1:]), file=sys.stderr)
    if rows:
        print(model_table.table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
