#!/usr/bin/env python3
"""Collect cut-outs and photographs that packages carry, for train_images.py and held-out composites.

  apt-get download openclipart-png tuxpaint-stamps-default gnome-backgrounds
  for f in *.deb; do dpkg -x "$f" unpacked; done
  tools/demo_model/collect_materials.py --root unpacked --out runs/materials

collect.py lists the packages. The photographs of photos.py, on which models are evaluated, are never collected.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.demo_model.collect import collect
from tools.demo_model.photos import hashes
from triton_sam.commands._options import run_script


def main() -> int:
    """Collect the materials and print how many each package gave."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = options.add_argument
    add("--out", type=Path, required=True, help="folder of the collected files and their manifest")
    add("--root", type=Path, action="append", metavar="DIR",
        help="folder of unpacked packages; repeat the option for more (default: /, the Debian system)")  # fmt: skip
    add("--photographs", type=Path, action="append", default=[], metavar="DIR",
        help="also collect the photographs in this folder and its subfolders; repeat the option for more")  # fmt: skip
    add("--limit", type=int, default=3000, help="maximum number of files of one package (default: 3000)")
    given = options.parse_args()
    collected = collect(given.out, given.root or [Path("/")], hashes(), given.limit, given.photographs)
    for source, number in Counter(material.source for material in collected).items():
        print(f"{number:6} {source}")
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
