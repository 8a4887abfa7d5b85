"""Surfaces of synthetic objects: noise fields, colours, relief and shading, and the effects of a camera.

A `Field` is float32 (H, W) in 0..1, an `Image` float32 (H, W, 3) in 0..1. A frequency is a number of periods along the
longer side of the whole image, so that a scene looks the same at every size.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
Image = NDArray[np.float32]


def noise(rng: np.random.Generator, shape: tuple[int, int], cells: float, octaves: int = 3) -> Field:
    """Draw fractal value noise: a sum of smooth random grids, each twice as fine and half as strong as the last."""
    height, width = shape
    total = np.zeros(shape, np.float32)
    weight = 1.0
    for _ in range(octaves):
        rows, columns = (max(2, min(n, round(cells * n / max(shape)) + 1)) for n in shape)
        grid = rng.random((rows, columns), dtype=np.float32)
        total += weight * cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC)
        weight *= 0.5
        cells *= 2
    low, high = float(total.min()), float(total.max())
    return ((total - low) / max(high - low, 1e-6)).astype(np.float32)


def ramp(rng: np.random.Generator, shape: tuple[int, int]) -> Field:
    """Draw a linear gradient in a random direction."""
    angle = rng.uniform(0, 2 * np.pi)
    rows = np.linspace(-1, 1, shape[0], dtype=np.float32)[:, None]
    columns = np.linspace(-1, 1, shape[1], dtype=np.float32)[None]
    return np.asarray(np.clip(0.5 + 0.36 * (np.cos(angle) * columns + np.sin(angle) * rows), 0, 1), np.float32)


def stripes(rng: np.random.Generator, shape: tuple[int, int], cells: float) -> Field:
    """Draw waves in one direction, or crossed like a chequerboard, with soft or hard edges, bent by noise."""
    angle = rng.uniform(0, np.pi)
    scale = 2 * np.pi * cells / max(shape)
    rows = np.arange(shape[0], dtype=np.float32)[:, None] * scale
    columns = np.arange(shape[1], dtype=np.float32)[None] * scale
    bend = noise(rng, shape, 3, 1) * rng.uniform(0, 4)
    wave = np.sin(np.cos(angle) * columns + np.sin(angle) * rows + bend)
    if rng.random() < 0.4:
        wave = wave * np.sin(-np.sin(angle) * columns + np.cos(angle) * rows + bend)
    sharpness = rng.choice([1.0, 4.0])
    return np.asarray(np.clip(0.5 + 0.5 * sharpness * wave, 0, 1), np.float32)


def emboss(rng: np.random.Generator, height_map: Field, strength: float) -> Field:
    """Light a height map from a random side. Returns the change of brightness, float32 (H, W), centred on zero."""
    angle = rng.uniform(0, 2 * np.pi)
    across = cv2.Sobel(height_map, cv2.CV_32F, 1, 0)
    down = cv2.Sobel(height_map, cv2.CV_32F, 0, 1)
    slope = np.cos(angle) * across + np.sin(angle) * down
    spread = float(np.sqrt((slope**2).mean())) + 1e-6
    return np.asarray(np.clip(slope / spread, -2.5, 2.5) * strength, np.float32)


def random_field(rng: np.random.Generator, shape: tuple[int, int], share: float) -> Field:
    """Draw a texture of a random kind for a patch that spans the share `share` (0..1] of the image's side."""
    kind = rng.random()
    fine = max(2.0, rng.choice([6.0, 16.0, 50.0]) * share)
    if kind < 0.25:
        return np.zeros(shape, np.float32)
    if kind < 0.42:
        return ramp(rng, shape)
    if kind < 0.78:
        return noise(rng, shape, fine, int(rng.integers(1, 5)))
    if kind < 0.92:
        return stripes(rng, shape, max(1.5, rng.uniform(4, 30) * share))
    return (noise(rng, shape, fine * 2, 2) > rng.uniform(0.4, 0.7)).astype(np.float32)


def random_colour(rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw a colour, usually a muted one. Returns float32 (3,), RGB in 0..1."""
    level = rng.uniform(0.05, 0.95)
    tint = rng.normal(0, rng.choice([0.04, 0.15, 0.3]), 3)
    return np.asarray(np.clip(level + tint - tint.mean(), 0.02, 0.98), np.float32)


def contrasting_colour(
    rng: np.random.Generator, other: NDArray[np.float32], min_contrast: float
) -> NDArray[np.float32]:
    """Draw a colour that differs from another by at least `min_contrast` (RMS over the channels).

    After eight failed attempts, the colour may be closer.
    """
    colour = random_colour(rng)
    for _ in range(8):
        if float(np.sqrt(((colour - other) ** 2).mean())) >= min_contrast:
            break
        colour = random_colour(rng)
    return colour


def paint(rng: np.random.Generator, shape: tuple[int, int], colour: NDArray[np.float32], share: float) -> Image:
    """Paint a patch of `shape` (H, W) with a texture that varies around a base colour.

    `share` is the share (0..1] of the image's side that the patch spans.
    """
    field = random_field(rng, shape, share)
    second = np.clip(colour + rng.normal(0, rng.choice([0.05, 0.12, 0.25]), 3), 0, 1).astype(np.float32)
    return np.asarray(colour + field[..., None] * (second - colour), np.float32)


def dome(mask: NDArray[np.bool_], power: float = 0.5) -> Field:
    """Return the height map of a rounded body: the distance to its outline, scaled to 0..1 and raised to `power`."""
    distance = cv2.distanceTransform(np.pad(mask, 1).astype(np.uint8), cv2.DIST_L2, 3)[1:-1, 1:-1]
    return np.asarray((distance / max(float(distance.max()), 1e-6)) ** power, np.float32)


def camera(rng: np.random.Generator, scene: Image, difficulty: float) -> NDArray[np.uint8]:
    """Apply the effects of light, lens, sensor and file format to a scene.

    The effects are, in this order, uneven light, blur, low contrast, grey values, noise and JPEG compression. Blur is
    always applied, each of the others at random.

    Returns:
        uint8 (H, W, 3), RGB.
    """
    size = scene.shape[0]
    if rng.random() < 0.5:
        light = noise(rng, (size, size), rng.uniform(1, 3), 1)
        scene = scene * (1 + rng.uniform(0.1, 0.7) * (light - 0.6))[..., None]
    sigma = size / 512 * rng.uniform(0.4, 0.7 + 1.6 * difficulty * rng.random() ** 2)
    scene = np.asarray(cv2.GaussianBlur(scene, (0, 0), max(sigma, 0.25)), np.float32)
    if rng.random() < 0.3:
        contrast = rng.uniform(1 - 0.65 * difficulty, 1.0)
        scene = (scene - 0.5) * contrast + rng.uniform(0.5 * contrast, 1 - 0.5 * contrast)
    if rng.random() < 0.35:
        scene = np.repeat(scene @ np.array([[0.299], [0.587], [0.114]], np.float32), 3, axis=2)
    if rng.random() < 0.6:
        spread = difficulty * rng.uniform(0, 0.07) * rng.random()
        channels = 1 if rng.random() < 0.5 else 3
        scene = scene + rng.normal(0, spread + 0.002, (*scene.shape[:2], channels)).astype(np.float32)
    image = np.clip(scene * 255 + 0.5, 0, 255).astype(np.uint8)
    if rng.random() < 0.35 * difficulty:
        quality = int(rng.integers(25, 90))
        encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        image = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR), np.uint8)
    return image
