#!/usr/bin/env python3
"""Make a TIFF file with a pyramid from many copies of test/images/shapes.jpg, for the tutorials.

Examples:
  python docs/tutorial/draw_large_image.py slide.tif
  python docs/tutorial/draw_large_image.py town.tif --map
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

IMAGE = Path(__file__).resolve().parents[2] / "test" / "images" / "shapes.jpg"
LEVELS = 3
PLACE = (
    (33550, "d", 3, (0.5, 0.5, 0.0), True),  # half a metre for each pixel
    (33922, "d", 6, (0.0, 0.0, 0.0, 500_000.0, 5_400_000.0, 0.0), True),
    (34735, "H", 16, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633), True),
)
"""The tags of a GeoTIFF: the first pixel lies at 500000, 5400000 of EPSG:32633 (UTM 33 N)."""


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, metavar="PATH", help="TIFF file to write")
    parser.add_argument("--map", action="store_true", help="say where the image lies on Earth")
    parser.add_argument("--columns", type=int, default=6, metavar="N", help="copies from left to right (default: 6)")
    parser.add_argument("--rows", type=int, default=5, metavar="N", help="copies from top to bottom (default: 5)")
    args = parser.parse_args()
    try:
        import tifffile
    except ImportError:
        print('tifffile is missing: pip install -c constraints.txt -e ".[tiles]"', file=sys.stderr)
        return 1
    with Image.open(IMAGE) as image:
        pixels = np.tile(np.asarray(image.convert("RGB")), (args.rows, args.columns, 1))
    common: dict[str, Any] = {"tile": (256, 256), "photometric": "rgb", "compression": "zlib"}
    with tifffile.TiffWriter(args.path) as writer:
        writer.write(pixels, subifds=LEVELS - 1, extratags=PLACE if args.map else (), **common)
        for level in range(1, LEVELS):
            writer.write(pixels[:: 2**level, :: 2**level], subfiletype=1, **common)
    print(f"{args.path}: {pixels.shape[1]} x {pixels.shape[0]} pixels, {LEVELS} levels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
