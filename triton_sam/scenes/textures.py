"""Surfaces of synthetic objects: noise fields, colours, relief, shading, and what a camera does to a picture.

Scalar fields are float32 (H, W) in 0..1, pictures float32 (H, W, 3) in 0..1. Frequencies count periods across the
larger side of the whole picture, so that a scene looks alike at every size.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
Picture = NDArray[np.float32]


def noise(rng: np.random.Generator, shape: tuple[int, int], cells: float, octaves: int = 3) -> Field:
    """Sum smooth random grids, each twice as fine and half as strong as the one before (fractal value noise)."""
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
    """Linear gradient in a random direction, 0..1."""
    angle = rng.uniform(0, 2 * np.pi)
    rows = np.linspace(-1, 1, shape[0], dtype=np.float32)[:, None]
    columns = np.linspace(-1, 1, shape[1], dtype=np.float32)[None]
    return np.asarray(np.clip(0.5 + 0.36 * (np.cos(angle) * columns + np.sin(angle) * rows), 0, 1), np.float32)


def stripes(rng: np.random.Generator, shape: tuple[int, int], cells: float) -> Field:
    """Waves in one direction, or crossed as a chequer, bent by noise; soft or hard edges."""
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
    """Light a height map from a random side; returns a zero-centred brightness change."""
    angle = rng.uniform(0, 2 * np.pi)
    across = cv2.Sobel(height_map, cv2.CV_32F, 1, 0)
    down = cv2.Sobel(height_map, cv2.CV_32F, 0, 1)
    slope = np.cos(angle) * across + np.sin(angle) * down
    spread = float(np.sqrt((slope**2).mean())) + 1e-6
    return np.asarray(np.clip(slope / spread, -2.5, 2.5) * strength, np.float32)


def random_field(rng: np.random.Generator, shape: tuple[int, int], share: float) -> Field:
    """Draw a texture of a random kind for a patch that spans `share` (0..1] of the picture's side."""
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
    """Draw a colour: mostly muted, sometimes saturated. Returns (3,)."""
    level = rng.uniform(0.05, 0.95)
    tint = rng.normal(0, rng.choice([0.04, 0.15, 0.3]), 3)
    return np.asarray(np.clip(level + tint - tint.mean(), 0.02, 0.98), np.float32)


def contrasting_colour(rng: np.random.Generator, other: NDArray[np.float32], least: float) -> NDArray[np.float32]:
    """Draw a colour at least `least` (RMS over the channels) away from another, if one is found quickly."""
    colour = random_colour(rng)
    for _ in range(8):
        if float(np.sqrt(((colour - other) ** 2).mean())) >= least:
            break
        colour = random_colour(rng)
    return colour


def paint(rng: np.random.Generator, shape: tuple[int, int], colour: NDArray[np.float32], share: float) -> Picture:
    """Cover a patch with a textured surface around a base colour."""
    field = random_field(rng, shape, share)
    second = np.clip(colour + rng.normal(0, rng.choice([0.05, 0.12, 0.25]), 3), 0, 1).astype(np.float32)
    return np.asarray(colour + field[..., None] * (second - colour), np.float32)


def dome(mask: NDArray[np.bool_], power: float = 0.5) -> Field:
    """Height of a rounded body over its silhouette: distance to the outline, 0..1, raised to `power`."""
    distance = cv2.distanceTransform(np.pad(mask, 1).astype(np.uint8), cv2.DIST_L2, 3)[1:-1, 1:-1]
    return np.asarray((distance / max(float(distance.max()), 1e-6)) ** power, np.float32)


def camera(rng: np.random.Generator, picture: Picture, difficulty: float) -> NDArray[np.uint8]:
    """Uneven light, blur, contrast, sensor noise, vignette, grey scale, JPEG; in that order, each by chance."""
    size = picture.shape[0]
    if rng.random() < 0.5:
        light = noise(rng, (size, size), rng.uniform(1, 3), 1)
        picture = picture * (1 + rng.uniform(0.1, 0.7) * (light - 0.6))[..., None]
    sigma = size / 512 * rng.uniform(0.4, 0.7 + 1.6 * difficulty * rng.random() ** 2)
    picture = np.asarray(cv2.GaussianBlur(picture, (0, 0), max(sigma, 0.25)), np.float32)
    if rng.random() < 0.3:
        contrast = rng.uniform(1 - 0.65 * difficulty, 1.0)
        picture = (picture - 0.5) * contrast + rng.uniform(0.5 * contrast, 1 - 0.5 * contrast)
    if rng.random() < 0.35:
        picture = np.repeat(picture @ np.array([[0.299], [0.587], [0.114]], np.float32), 3, axis=2)
    if rng.random() < 0.6:
        spread = difficulty * rng.uniform(0, 0.07) * rng.random()
        channels = 1 if rng.random() < 0.5 else 3
        picture = picture + rng.normal(0, spread + 0.002, (*picture.shape[:2], channels)).astype(np.float32)
    image = np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8)
    if rng.random() < 0.35 * difficulty:
        quality = int(rng.integers(25, 90))
        encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        image = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR), np.uint8)
    return image
