#!/usr/bin/env python3
"""Draw two sample images of the page: test/images/street.jpg and test/images/cells.jpg."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

WIDTH, HEIGHT, OVERSAMPLE = 800, 600, 3
FOLDER = Path(__file__).resolve().parents[2] / "test" / "images"
Colour = tuple[int, int, int]


class Pen:
    """Draws on a canvas that is OVERSAMPLE times as large as the image, in pixels of the image."""

    def __init__(self) -> None:
        self.canvas = Image.new("RGB", (WIDTH * OVERSAMPLE, HEIGHT * OVERSAMPLE))
        self._pen = ImageDraw.Draw(self.canvas)

    def box(self, corners: tuple[float, float, float, float], fill: Colour, radius: float = 0) -> None:
        """Fill a rectangle with round corners."""
        self._pen.rounded_rectangle(_scaled(corners), radius * OVERSAMPLE, fill=fill)

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        self._pen.ellipse(_scaled((x - radius, y - radius, x + radius, y + radius)), fill=fill)

    def polygon(self, corners: list[tuple[float, float]], fill: Colour) -> None:
        self._pen.polygon([(x * OVERSAMPLE, y * OVERSAMPLE) for x, y in corners], fill=fill)


def _scaled(corners: tuple[float, ...]) -> list[float]:
    return [value * OVERSAMPLE for value in corners]


def draw_street() -> Image.Image:
    """Return houses, a tree, a bus and a car: things of many sizes with parts."""
    pen = Pen()
    for y in range(HEIGHT):
        share = y / HEIGHT
        pen.box((0, y, WIDTH, y + 1), (int(120 + 110 * share), int(170 + 50 * share), int(215 + 15 * share)))
    pen.disc(690, 90, 46, (250, 222, 130))
    for x, top, width, colour in ((20, 150, 190, (176, 104, 82)), (220, 95, 150, (206, 186, 150)),
                                  (560, 170, 210, (132, 140, 156))):  # fmt: skip
        _house(pen, x, top, width, colour)
    pen.box((0, 430, WIDTH, 470), (168, 164, 156))
    pen.box((0, 465, WIDTH, HEIGHT), (84, 86, 92))
    for x in range(20, WIDTH, 120):
        pen.box((x, 535, x + 60, 543), (226, 224, 214))
    pen.box((462, 300, 482, 445), (96, 70, 48), 4)
    for x, y, radius in ((430, 265, 48), (510, 262, 50), (470, 215, 60), (470, 275, 52)):
        pen.disc(x, y, radius, (64, 120, 66))
    _bus(pen, 60, 360)
    _car(pen, 560, 450)
    return _photographed(pen, np.random.default_rng(11))


def _house(pen: Pen, x: int, top: int, width: int, colour: Colour) -> None:
    roof: Colour = (max(0, colour[0] - 70), max(0, colour[1] - 60), max(0, colour[2] - 50))
    pen.polygon([(x - 12, top), (x + width / 2, top - 62), (x + width + 12, top)], roof)
    pen.box((x, top, x + width, 445), colour)
    for row in range(top + 26, 330, 66):
        for column in range(x + 20, x + width - 34, 56):
            pen.box((column - 3, row - 3, column + 33, row + 41), (236, 232, 222))
            pen.box((column, row, column + 30, row + 38), (70, 92, 116))


def _bus(pen: Pen, x: int, y: int) -> None:
    pen.box((x, y, x + 330, y + 140), (226, 172, 46), 18)
    pen.box((x, y + 88, x + 330, y + 102), (60, 60, 66))
    for window in range(5):
        pen.box((x + 18 + 62 * window, y + 20, x + 68 + 62 * window, y + 70), (150, 188, 206), 6)
    for wheel in (70, 262):
        pen.disc(x + wheel, y + 140, 30, (34, 34, 38))
        pen.disc(x + wheel, y + 140, 13, (178, 178, 182))


def _car(pen: Pen, x: int, y: int) -> None:
    pen.polygon([(x + 40, y), (x + 76, y - 42), (x + 146, y - 42), (x + 180, y)], (172, 42, 48))
    pen.polygon([(x + 54, y - 2), (x + 82, y - 34), (x + 106, y - 34), (x + 106, y - 2)], (164, 200, 214))
    pen.polygon([(x + 114, y - 2), (x + 114, y - 34), (x + 142, y - 34), (x + 166, y - 2)], (164, 200, 214))
    pen.box((x, y, x + 216, y + 48), (196, 48, 54), 16)
    for wheel in (48, 168):
        pen.disc(x + wheel, y + 48, 24, (34, 34, 38))
        pen.disc(x + wheel, y + 48, 10, (178, 178, 182))


def draw_cells() -> Image.Image:
    """Return cells under a microscope: many similar objects for searches for everything or by examples."""
    random = np.random.default_rng(5)
    pen = Pen()
    pen.box((0, 0, WIDTH, HEIGHT), (236, 222, 232))
    places: list[tuple[float, float, float]] = []
    while len(places) < 34:
        x, y, radius = random.uniform(30, WIDTH - 30), random.uniform(30, HEIGHT - 30), random.uniform(30, 58)
        if all(np.hypot(x - a, y - b) > radius + c - 4 for a, b, c in places):
            places.append((x, y, radius))
            _cell(pen, x, y, radius, random)
    return _photographed(pen, random)


def _cell(pen: Pen, x: float, y: float, radius: float, random: np.random.Generator) -> None:
    angles = np.linspace(0, 2 * np.pi, 90, endpoint=False)
    bumps = 1 + 0.08 * np.cos(3 * angles + random.uniform(0, 6)) + 0.05 * np.sin(5 * angles + random.uniform(0, 6))
    shade = int(random.integers(-14, 15))

    def ring(size: float, dx: float = 0, dy: float = 0) -> list[tuple[float, float]]:
        radii = size * bumps
        return [(x + dx + r * np.cos(a), y + dy + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)]

    pen.polygon(ring(radius), (168 + shade, 104 + shade, 156 + shade))
    pen.polygon(ring(radius * 0.9), (212 + shade, 158 + shade, 200 + shade))
    dx, dy = random.uniform(-0.2, 0.2, 2) * radius
    pen.polygon(ring(radius * 0.42, dx, dy), (98 + shade, 56 + shade, 132 + shade))


def _photographed(pen: Pen, random: np.random.Generator) -> Image.Image:
    """Return the drawing with soft edges, uneven light and noise."""
    small = pen.canvas.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).filter(ImageFilter.GaussianBlur(0.7))
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    light = 1.06 - 0.16 * np.hypot((x - WIDTH * 0.45) / WIDTH, (y - HEIGHT * 0.4) / HEIGHT)
    pixels: npt.NDArray[np.float64] = np.asarray(small) * light[..., None] + random.normal(0, 3, (HEIGHT, WIDTH, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    draw_street().save(FOLDER / "street.jpg", quality=88)
    draw_cells().save(FOLDER / "cells.jpg", quality=88)


if __name__ == "__main__":
    main()
