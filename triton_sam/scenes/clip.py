"""A short drawn video with exact masks: objects move, turn and cross each other, and one is briefly hidden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from ..masks.boxes import mask_to_box
from . import shapes, textures

TRAINING_CLIPS = 10_000_000
"""Clips from this number on are for training; smaller ones are held out."""
FRAMES = 32
SIZE = 512

_MIN_SIZE = 64
_MIN_CONTRAST = 0.25
_MIN_AREA = 0.5
"""Smallest area of an object, as a share of the disc with its radius."""
_HIDING_PLACE = 1.45
"""Width of the post, relative to the object that passes behind it."""


@dataclass(frozen=True, eq=False)
class Clip:
    """A drawn video.

    Args:
        labels: uint8 (T,H,W), the number (1..3) of the topmost object at each pixel, or 0 for the background.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Layer:
    """An object or the post, drawn in every frame.

    Args:
        label: number of the object; 0 for the post.
        mask: float32 (H,W), 1 inside, around the middle of the image.
        place: returns x and y of its middle, in pixels, for a time 0..1.
    """

    label: int
    mask: NDArray[np.float32]
    pixels: textures.Image
    place: Callable[[float], tuple[float, float]]
    turn: float


def generate_clip(seed: int, frames: int = FRAMES, size: int = SIZE) -> Clip:
    """Draw the clip of a seed. The same arguments give the same clip, byte for byte.

    Object 1 crosses the image from left to right, and a post hides it for some frames in the middle. Object 2 moves
    from right to left and covers the post and object 1 where they meet. Object 3 crosses both from top to bottom.

    Args:
        frames: number of frames, at least 2. From 24 frames on, movements are smooth.
        size: side of the square frames in pixels, at least 64.
    """
    if seed < 0 or frames < 2 or size < _MIN_SIZE:
        raise ConfigurationError(
            f"cannot draw a clip for seed {seed}, {frames} frames, size {size}: the seed must be at least 0, and there "
            f"must be 2 frames of {_MIN_SIZE} pixels or more"
        )
    rng = np.random.default_rng([seed, 0xC11F])
    ground = textures.random_colour(rng)
    background = textures.paint(rng, (size, size), ground, 1.0)
    layers = _layers(rng, size, ground)
    images = np.empty((frames, size, size, 3), np.uint8)
    labels = np.zeros((frames, size, size), np.uint8)
    for frame in range(frames):
        time = frame / (frames - 1)
        canvas = background.copy()
        for layer in layers:
            draw_layer(layer, time, canvas, labels[frame])
        images[frame] = photograph(rng, canvas)
    return Clip(images, labels)


def _layers(rng: np.random.Generator, size: int, ground: NDArray[np.float32]) -> list[Layer]:
    """Return the layers from back to front."""
    first, second, third = (sprite(rng, size, radius) for radius in (0.075, 0.11, 0.09))
    left, _, right, _ = mask_to_box(first) or (0, 0, 0, 0)
    width = _HIDING_PLACE * (right - left)
    middle = size * rng.uniform(0.45, 0.55)
    rows = size * rng.uniform([0.4, 0.35, 0.42], [0.6, 0.65, 0.58])
    wave, phase = size * rng.uniform(0.02, 0.06), rng.uniform(0, 2 * np.pi)
    post = np.abs(np.arange(size) - size / 2) <= width / 2
    # The post stands still, so object 1 moves only a little up and down on its way, and never turns.
    return [
        _layer(rng, 1, first, ground, lambda t: (size * (0.12 + 0.76 * t), rows[0] + wave / 4 * np.sin(6 * t)), 0.0),
        _layer(rng, 0, np.tile(post, (size, 1)), ground, lambda _: (middle, size / 2), 0.0),
        _layer(
            rng,
            2,
            second,
            ground,
            lambda t: (size * (0.86 - 0.74 * t), rows[1] + wave * np.sin(6 * t + phase)),
            rng.uniform(-60, 60),
        ),
        _layer(
            rng,
            3,
            third,
            ground,
            lambda t: (rows[2] + wave * np.sin(5 * t), size * (0.12 + 0.76 * t)),
            rng.uniform(-90, 90),
        ),
    ]


def sprite(rng: np.random.Generator, size: int, radius: float) -> shapes.Mask:
    """Draw the connected silhouette of an object in the middle of the image; thin ones are redrawn."""
    while True:
        draw = (shapes.smooth, shapes.ellipse, shapes.polygon)[int(rng.integers(3))]
        mask = draw(rng, size, (size / 2, size / 2), radius * size)
        if mask.sum() >= _MIN_AREA * np.pi * (radius * size) ** 2:
            return mask


def _layer(
    rng: np.random.Generator,
    label: int,
    mask: shapes.Mask,
    ground: NDArray[np.float32],
    place: Callable[[float], tuple[float, float]],
    turn: float,
) -> Layer:
    size = len(mask)
    colour = textures.contrasting_colour(rng, ground, _MIN_CONTRAST)
    pixels = textures.paint(rng, (size, size), colour, 0.25)
    return Layer(label, mask.astype(np.float32), pixels, place, turn)


def draw_layer(layer: Layer, time: float, canvas: textures.Image, labels: NDArray[np.uint8]) -> None:
    """Draw a layer at a time 0..1 on the canvas and the labels of a frame."""
    size = len(canvas)
    x, y = layer.place(time)
    move = np.asarray(cv2.getRotationMatrix2D((size / 2, size / 2), layer.turn * time, 1.0), np.float64)
    move[:, 2] += np.array([x - size / 2, y - size / 2])
    inside = cv2.warpAffine(layer.mask, move, (size, size)) >= 0.5
    pixels = cv2.warpAffine(layer.pixels, move, (size, size), borderMode=cv2.BORDER_REFLECT)
    canvas[inside] = pixels[inside]
    labels[inside] = layer.label


def photograph(rng: np.random.Generator, canvas: textures.Image) -> NDArray[np.uint8]:
    """Blur the edges like a lens, and add a little sensor noise, new in each frame."""
    soft = cv2.GaussianBlur(np.clip(canvas, 0, 1), (0, 0), max(len(canvas) / 512 * 0.7, 0.25))
    noisy = soft + rng.normal(0, 0.008, soft.shape).astype(np.float32)
    return np.clip(noisy * 255 + 0.5, 0, 255).astype(np.uint8)
