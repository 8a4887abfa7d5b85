"""Small packages of cut-outs and photographs, and a folder of such materials."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from tools.demo_model.materials import Material, write_manifest

CLIPART = Path("usr/share/openclipart/png")
WALLPAPERS = Path("usr/share/backgrounds/mate/nature")


def draw_cutout(number: int, side: int = 96) -> NDArray[np.uint8]:
    """Return an ellipse with two colours on a transparent background: uint8 (side, side, 4)."""
    pixels = np.zeros((side, side, 4), np.uint8)
    middle = (side // 2, side // 2)
    axes = (side // 2 - 4, side // 3 + number % 5)
    cv2.ellipse(pixels, middle, axes, 10.0 * number, 0, 360, (40, 80 + 20 * number % 100, 200, 255), -1)
    cv2.circle(pixels, middle, side // 6, (220, 30, 90, 255), -1)
    return pixels


def draw_photograph(number: int, side: int = 300) -> NDArray[np.uint8]:
    """Return blurred noise with as much detail as a photograph: uint8 (side, side, 3)."""
    noise = np.random.default_rng(number).integers(0, 256, (side, side, 3)).astype(np.uint8)
    return np.asarray(cv2.blur(noise, (3, 3)), np.uint8)


def write_packages(root: Path, cutouts: int = 4, photographs: int = 3) -> None:
    """Write unpacked packages: openclipart-png and mate-backgrounds."""
    for folder, count, draw in ((CLIPART, cutouts, draw_cutout), (WALLPAPERS, photographs, draw_photograph)):
        (root / folder).mkdir(parents=True)
        for number in range(count):
            cv2.imwrite(str(root / folder / f"{number}.png"), draw(number))


def write_materials(folder: Path, held_out: bool = False) -> Path:
    """Write a folder of materials: three cut-outs and two photographs. Returns the folder."""
    entries = []
    for kind, count, draw in (("cutout", 3, draw_cutout), ("background", 2, draw_photograph)):
        for number in range(count):
            digest = f"{16 * number + (not held_out):08x}".ljust(64, "0")
            name = f"{kind}s/{digest[:20]}.png"
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / name), draw(number))
            entries.append(Material(name, kind, "drawn", f"{number}.png", "none", digest))
    write_manifest(folder, entries)
    return folder
