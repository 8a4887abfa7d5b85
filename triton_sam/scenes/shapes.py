"""Outlines of synthetic objects. Each shape function draws one random silhouette as a bool (size, size) mask.

All lengths are in pixels of the square canvas; `radius` is about half the extent of the object.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Points = NDArray[np.float64]
ShapeFunction = Callable[[np.random.Generator, int, tuple[float, float], float], Mask]

_SUBPIXEL_BITS = 4  # cv2 takes fixed-point coordinates, so that small objects keep a smooth outline
_GLYPHS = "ABCDEFGHKMNRSTWXYZabdeghkqrs0123456789&@#?"


def fill(size: int, *outlines: Points) -> Mask:
    """Fill closed outlines, each (N, 2) with x, y. An outline inside another one cuts a hole. Returns (size, size)."""
    canvas = np.zeros((size, size), np.uint8)
    fixed = [np.round(outline * (1 << _SUBPIXEL_BITS)).astype(np.int32) for outline in outlines]
    cv2.fillPoly(canvas, fixed, (1,), cv2.LINE_8, _SUBPIXEL_BITS)
    return canvas.astype(bool)


def radial_outline(rng: np.random.Generator, center: tuple[float, float], radius: float, rough: float) -> Points:
    """Draw a closed curve whose radius is a random Fourier series of the angle, and squeeze it along a random axis.

    Returns:
        (N, 2) float64 points.
    """
    angle = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    harmonics = np.arange(2, 7)
    amplitude = rough * rng.normal(size=5) / harmonics**0.8
    phase = rng.uniform(0, 2 * np.pi, 5)
    series = 1 + (amplitude[:, None] * np.cos(harmonics[:, None] * angle + phase[:, None])).sum(0)
    distance = radius * np.clip(series, 0.25, 1.8)
    return _squeeze(rng, np.stack([distance * np.cos(angle), distance * np.sin(angle)], 1), 0.45) + center


def _squeeze(rng: np.random.Generator, points: Points, min_factor: float) -> Points:
    """Shrink points along a random axis by a factor in [min_factor, 1]."""
    turn = rng.uniform(0, np.pi)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    scaled: Points = points @ rotation * [1.0, rng.uniform(min_factor, 1.0)] @ rotation.T
    return scaled


def smooth(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    return fill(size, radial_outline(rng, center, radius, rng.uniform(0.02, 0.3)))


def ellipse(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    return fill(size, radial_outline(rng, center, radius, 0.0))


def fractal(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    """Draw a rough outline by midpoint displacement, like leaves, rocks and coasts."""
    corners = int(rng.integers(3, 8))
    angle = np.sort(rng.uniform(0, 2 * np.pi, corners)) * 0.35 + np.arange(corners) * 2 * np.pi / corners * 0.65
    points = radius * rng.uniform(0.6, 1.1, (corners, 1)) * np.stack([np.cos(angle), np.sin(angle)], 1)
    roughness = rng.uniform(0.08, 0.3)
    for _ in range(6):
        next_points = np.roll(points, -1, axis=0)
        edge = next_points - points
        normal = np.stack([-edge[:, 1], edge[:, 0]], 1)
        middle = (points + next_points) / 2 + normal * rng.normal(0, roughness, (len(points), 1))
        points = np.stack([points, middle], 1).reshape(-1, 2)
    return fill(size, points + center)


def polygon(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    """Draw a polygon with 3 to 8 corners, sometimes a star."""
    corners = int(rng.integers(3, 9))
    angle = np.arange(corners) * 2 * np.pi / corners + rng.uniform(0, 2 * np.pi) + rng.normal(0, 0.15, corners)
    distance = radius * rng.uniform(0.8, 1.2, corners)
    if corners >= 6 and rng.random() < 0.5:
        distance[::2] *= rng.uniform(0.35, 0.7)
    points = np.stack([distance * np.cos(angle), distance * np.sin(angle)], 1)
    return fill(size, _squeeze(rng, points, 0.4) + center)


def rectangle(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    """Draw a rectangle at any angle: anything from a square to a narrow bar."""
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [1.0, rng.uniform(0.12, 1.0)] * radius * 0.85
    turn = rng.choice([0.0, rng.uniform(0, np.pi)])
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return fill(size, corners @ rotation + center)


def ring(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    """Draw a shape with a hole."""
    outer = radial_outline(rng, center, radius, rng.uniform(0, 0.15))
    inner = (outer - center) * rng.uniform(0.3, 0.75) + center + rng.normal(0, 0.05 * radius, 2)
    return fill(size, outer, inner)


def stroke(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    """Draw a thin curved line, like a wire, a stem, a worm or a road."""
    turns = rng.normal(0, rng.uniform(0.1, 0.5), 24).cumsum() + rng.uniform(0, 2 * np.pi)
    path = np.stack([np.cos(turns), np.sin(turns)], 1).cumsum(0)
    path = (path - path.mean(0)) / max(1e-6, float(np.abs(path - path.mean(0)).max())) * radius + center
    canvas = np.zeros((size, size), np.uint8)
    width = max(2, round(radius * rng.uniform(0.08, 0.3)))
    cv2.polylines(canvas, [np.round(path).astype(np.int32)], False, (1,), width)
    return canvas.astype(bool)


def glyph(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    """Draw one letter or digit in bold strokes."""
    font = int(rng.choice([cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX]))
    scale = radius / 14
    thickness = max(2, round(radius * rng.uniform(0.15, 0.35)))
    text = _GLYPHS[int(rng.integers(len(_GLYPHS)))]
    (width, height), _ = cv2.getTextSize(text, font, scale, thickness)
    canvas = np.zeros((size, size), np.uint8)
    origin = (round(center[0] - width / 2), round(center[1] + height / 2))
    cv2.putText(canvas, text, origin, font, scale, (1,), thickness)
    return canvas.astype(bool)


def cluster(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    """Draw overlapping blobs along a random walk, which look like clouds, limbs or animals."""
    canvas = np.zeros((size, size), np.uint8)
    position = np.array(center)
    for _ in range(int(rng.integers(3, 7))):
        blob = radial_outline(rng, (position[0], position[1]), radius * rng.uniform(0.25, 0.6), 0.1)
        canvas |= fill(size, blob)
        position = position + rng.normal(0, 0.4 * radius, 2)
        position = np.clip(position, np.array(center) - radius * 0.7, np.array(center) + radius * 0.7)
    return canvas.astype(bool)


SHAPES: tuple[tuple[ShapeFunction, float], ...] = (
    (smooth, 0.24), (ellipse, 0.14), (fractal, 0.16), (polygon, 0.12), (rectangle, 0.12),
    (ring, 0.06), (stroke, 0.05), (glyph, 0.04), (cluster, 0.07),
)  # fmt: skip
"""The shape functions with their shares of all objects."""


def random_shape(rng: np.random.Generator, size: int, center: tuple[float, float], radius: float) -> Mask:
    """Draw one silhouette with a random shape function on a (size, size) canvas."""
    weights = np.array([share for _, share in SHAPES])
    kind = int(rng.choice(len(SHAPES), p=weights / weights.sum()))
    return SHAPES[kind][0](rng, size, center, radius)
