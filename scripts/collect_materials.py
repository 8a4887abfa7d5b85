#!/usr/bin/env python3
"""Collect cut-outs and photographs that packages carry, for `train_micro.py --materials` and held-out composites."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from triton_sam.evaluation.photos import hashes
from triton_sam.scenes.collect import SOURCES, collect

_EPILOG = f"""\
packages: {", ".join(source.name for source in SOURCES)}

  apt-get download openclipart-png tuxpaint-stamps-default gnome-backgrounds
  for f in *.deb; do dpkg -x "$f" unpacked; done
  scripts/collect_materials.py --root unpacked --out materials
"""


def main() -> int:
    """Run the script; the photographs of `triton-sam evaluate --dataset photos` are never collected."""
    options = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--out", type=Path, required=True, help="folder of the collected files and their manifest")
    options.add_argument(
        "--root", type=Path, action="append", metavar="DIR",
        help="folder of unpacked packages; repeat the option for more (default: /, the installed Debian packages)",
    )  # fmt: skip
    options.add_argument(
        "--photographs", type=Path, action="append", default=[], metavar="DIR",
        help="also collect the photographs in this folder and its subfolders; repeat the option for more",
    )  # fmt: skip
    options.add_argument(
        "--limit", type=int, default=3000, help="maximum number of files of one package (default: 3000)"
    )
    given = options.parse_args()
    collected = collect(given.out, given.root or [Path("/")], hashes(), given.limit, given.photographs)
    for source, number in Counter(material.source for material in collected).items():
        print(f"{number:6} {source}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
