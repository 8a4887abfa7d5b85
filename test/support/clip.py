"""A short drawn video with a moving disc, as a file and as images."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from support.contents import encoded
from support.video_files import write_video

WIDTH, HEIGHT, FRAMES, RATE = 320, 240, 24, 12
STEP = 6
"""Pixels by which the disc moves to the right per frame."""
START = (60, 120)
RADIUS = 30


def disc(frame: int, center: tuple[float, float] = START) -> np.ndarray:
    """Return the disc as a bool mask (H,W), for a disc at ``center`` in frame 0."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    mask: np.ndarray = (columns - center[0] - STEP * frame) ** 2 + (rows - center[1]) ** 2 <= RADIUS**2
    return mask


def image(frame: int) -> Image.Image:
    drawn = Image.new("RGB", (WIDTH, HEIGHT), (70, 90, 110))
    pen = ImageDraw.Draw(drawn)
    for x in range(0, WIDTH, 40):
        pen.line([(x, 0), (x, HEIGHT)], fill=(80, 100, 120))
    pen.rectangle([0, 190, WIDTH, HEIGHT], fill=(60, 70, 60))
    x, y = START[0] + STEP * frame, START[1]
    pen.ellipse([x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS], fill=(230, 170, 60))
    return drawn


def png(frame: int) -> bytes:
    """Return one frame as PNG."""
    return encoded(image(frame))


def write_frames(folder: Path, frames: int) -> list[Path]:
    """Write the first frames as PNG files and return their paths."""
    paths = [folder / f"{number:03}.png" for number in range(frames)]
    for number, path in enumerate(paths):
        path.write_bytes(png(number))
    return paths


def write_clip(path: Path, frames: int = FRAMES) -> Path:
    """Write the video in the format of the path's suffix."""
    pictures = [np.asarray(image(index)) for index in range(frames)]
    return write_video(path, pictures, rate=Fraction(RATE), width=WIDTH, height=HEIGHT, gop_size=8)
