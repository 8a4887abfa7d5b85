#!/usr/bin/env python3
"""Draw test/images/shapes.jpg and its ground truth test/images/shapes_labels.png (0 background, 1 to 6 objects)."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

WIDTH, HEIGHT, OVERSAMPLE = 800, 600, 4
FOLDER = Path(__file__).resolve().parents[2] / "test" / "images"


def star(cx: float, cy: float, outer: float, inner: float, points: int = 5) -> list[tuple[float, float]]:
    """Return the corners (x, y) of a star that points up."""
    angles = -np.pi / 2 + np.arange(2 * points) * np.pi / points
    radii = np.where(np.arange(2 * points) % 2 == 0, outer, inner)
    return [(cx + r * np.cos(a), cy + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)]


def blob(cx: float, cy: float, radius: float) -> list[tuple[float, float]]:
    """Return the points (x, y) of a smooth closed outline that is not an ellipse."""
    angles = np.linspace(0, 2 * np.pi, 180, endpoint=False)
    radii = radius * (1 + 0.18 * np.cos(3 * angles + 0.6) + 0.1 * np.sin(5 * angles))
    return [(cx + r * np.cos(a), cy + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)]


def draw_labels() -> npt.NDArray[np.uint8]:
    """Return the labels as uint8 (H, W). Later shapes cover earlier ones."""
    image = Image.new("L", (WIDTH * OVERSAMPLE, HEIGHT * OVERSAMPLE))
    pen = ImageDraw.Draw(image)
    k = OVERSAMPLE

    def scaled(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(x * k, y * k) for x, y in points]

    pen.rounded_rectangle([430 * k, 60 * k, 700 * k, 230 * k], 30 * k, fill=1)
    pen.ellipse([90 * k, 70 * k, 310 * k, 290 * k], fill=2)
    pen.polygon(scaled(star(620, 420, 130, 60)), fill=3)
    pen.polygon(scaled(blob(230, 440, 105)), fill=4)
    pen.ellipse([380 * k, 290 * k, 500 * k, 410 * k], fill=5)
    pen.ellipse([410 * k, 320 * k, 470 * k, 380 * k], fill=0)
    pen.ellipse([640 * k, 150 * k, 740 * k, 250 * k], fill=6)
    # Nearest-neighbour resampling, because an average of two labels is not a label.
    return np.asarray(image.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST))


def shade(labels: npt.NDArray[np.uint8]) -> Image.Image:
    """Return an RGB image of the labels: background and objects with gradients, texture, soft edges and noise."""
    noise = np.random.default_rng(7)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    colours = np.array(
        [[188, 184, 172], [52, 92, 140], [206, 84, 58], [226, 176, 52], [74, 132, 84], [122, 74, 138], [228, 228, 232]]
    )
    canvas = colours[labels].astype(np.float64)
    canvas *= (0.85 + 0.3 * (x / WIDTH) * (1 - y / HEIGHT) + 0.06 * np.sin(y / 9.0 + np.sin(x / 40.0)))[..., None]
    disc = labels == 2
    light = np.clip(1.25 - np.hypot(x - 160, y - 140) / 190, 0.45, 1.25)
    canvas[disc] *= light[disc][:, None]
    stripes = (labels == 1) & ((x + y) // 18 % 2 == 0)
    canvas[stripes] *= 1.18
    image = Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.8))
    noisy = np.asarray(image) + noise.normal(0, 4, (HEIGHT, WIDTH, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    labels = draw_labels()
    shade(labels).save(FOLDER / "shapes.jpg", quality=93)
    Image.fromarray(labels).save(FOLDER / "shapes_labels.png", optimize=True)


if __name__ == "__main__":
    main()
