"""Drawn training clips: objects move along free paths, cross each other, hide behind things, leave and return."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triton_sam.errors import ConfigurationError
from triton_sam.scenes import textures
from triton_sam.scenes.clip import TRAINING_CLIPS, Clip, Layer, draw_layer, generate_clip, photograph, sprite

_LIKE_EVALUATION = 0.4  # share of training clips drawn like the evaluation's clips, with other seeds
_LONG = 32  # frames in which the objects of a clip cross the whole image
_MAX_OBJECTS = 5
_THING_SHARE = 0.35  # share of layers that only hide the objects behind them


def generate_training_clip(seed: int, frames: int, size: int) -> Clip:
    """Draw a training clip, a part of the movements of a long clip. The same arguments give the same clip.

    Args:
        seed: number of the clip, at least TRAINING_CLIPS.
        frames: number of frames, 2..32.
        size: side of the square frames in pixels, at least 64.
    """
    if seed < TRAINING_CLIPS or not 2 <= frames <= _LONG:
        raise ConfigurationError(
            f"clip {seed} with {frames} frames cannot be used for training: use seeds from {TRAINING_CLIPS} on, since "
            f"smaller ones are held out, and 2 to {_LONG} frames"
        )
    rng = np.random.default_rng([seed, 0x30E])
    if rng.random() < _LIKE_EVALUATION:
        whole = generate_clip(seed, _LONG, size)
        stride = 2 if 2 * frames <= _LONG and rng.random() < 0.3 else 1
        start = int(rng.integers(_LONG - stride * (frames - 1)))
        shown = slice(start, start + stride * (frames - 1) + 1, stride)
        return Clip(seed, whole.images[shown], whole.labels[shown])
    return _wander(rng, seed, frames, size)


def _wander(rng: np.random.Generator, seed: int, frames: int, size: int) -> Clip:
    """Draw layers on free paths over a background that moves as with the camera."""
    ground = textures.random_colour(rng)
    margin = size // 8
    wide = textures.paint(rng, (size + 2 * margin, size + 2 * margin), ground, 1.0)
    pan = rng.uniform(-1, 1, 2) * rng.choice([0.0, 0.5, 1.0]) * margin
    layers = _layers(rng, size, ground)
    images = np.empty((frames, size, size, 3), np.uint8)
    labels = np.zeros((frames, size, size), np.uint8)
    for frame in range(frames):
        time = frame / _LONG
        left, top = (round(margin + float(share) * time) for share in pan)
        canvas = wide[top : top + size, left : left + size].copy()
        for layer in layers:
            draw_layer(layer, time, canvas, labels[frame])
        images[frame] = photograph(rng, canvas)
    return Clip(seed, images, labels)


def _layers(rng: np.random.Generator, size: int, ground: textures.Field) -> list[Layer]:
    """Return the objects and the things that hide them, from back to front."""
    layers: list[Layer] = []
    objects = int(rng.integers(2, _MAX_OBJECTS + 1))
    label = 0
    twin = float(rng.random()) < 0.25  # objects of one colour, distinguishable only by position and outline
    shared = textures.contrasting_colour(rng, ground, 0.2)
    while label < objects:
        is_thing = float(rng.random()) < _THING_SHARE
        label += not is_thing
        radius = float(np.exp(rng.uniform(np.log(0.05), np.log(0.2))))
        colour = shared if twin and not is_thing else textures.contrasting_colour(rng, ground, 0.15)
        pixels = textures.paint(rng, (size, size), colour, 0.25)
        mask = sprite(rng, size, radius).astype(np.float32)
        turn = float(rng.uniform(-90, 90))
        layers.append(Layer(0 if is_thing else label, mask, pixels, _path(rng, size), turn))
    return layers


def _path(rng: np.random.Generator, size: int) -> Callable[[float], tuple[float, float]]:
    """Return a path: a wavy line, with any speed up to a crossing of the image."""
    start = rng.uniform(0.1, 0.9, 2) * size
    speed = rng.uniform(0, 1.2) * size
    angle = rng.uniform(0, 2 * np.pi)
    along = speed * np.array([np.cos(angle), np.sin(angle)])
    wave = size * rng.uniform(0, 0.08, 2)
    beat, phase = rng.uniform(2, 9, 2), rng.uniform(0, 2 * np.pi, 2)

    def place(time: float) -> tuple[float, float]:
        x, y = start + along * time + wave * np.sin(beat * time + phase)
        return float(x), float(y)

    return place
