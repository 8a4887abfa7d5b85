"""Synthetic scenes with exact instance masks: mixed objects, coins, beans, cells, tiles and writing.

Objects are drawn from back to front together with a label map, so each mask is exactly the visible region of its
object. An object may have parts (a pattern, a nucleus, a spot). A click on a part may mean the part or the whole; SAM
predicts three masks because of this ambiguity (Kirillov et al., "Segment Anything", 2023, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from . import shapes, textures
from .canvas import Canvas, Scene, draw_object, draw_parts, paint_region, random_position, shade


def _mixed_objects(rng: np.random.Generator, size: int, difficulty: float) -> Scene:
    """Draw objects of all shapes that occlude each other, over a random background."""
    canvas = Canvas(rng, size, difficulty, textures.random_colour(rng))
    if rng.random() < 0.25:
        _split_background(canvas)
    min_contrast = rng.uniform(0.22 - 0.17 * difficulty, 0.3 - 0.05 * difficulty)
    radii = np.exp(
        rng.uniform(
            np.log(0.03 + 0.06 * (1 - difficulty)), np.log(0.32), int(rng.integers(3, int(7 + 12 * difficulty)))
        )
    )
    for radius in sorted(radii * size, reverse=True):
        mask = shapes.random_shape(rng, size, random_position(rng, size), radius)
        draw_object(canvas, mask, radius, min_contrast)
    return canvas.finish()


def _split_background(canvas: Canvas) -> None:
    """Split the background by a rough line, as between land and sea. Neither side becomes an object."""
    rng, size = canvas.rng, canvas.size
    horizon = rng.uniform(0.25, 0.75) * size + textures.noise(rng, (1, size), 8, 4)[0] * size * rng.uniform(0, 0.2)
    below = np.arange(size)[:, None] > horizon[None]
    if rng.random() < 0.5:
        below = below.T
    surface = textures.paint(rng, (size, size), textures.random_colour(rng), 1.0)
    canvas.image[below] = surface[below]


def _spread(rng: np.random.Generator, size: int, radius: float, count: int, gap: float) -> list[tuple[float, float]]:
    """Draw at most `count` random centres that are at least `gap` radii apart (dart throwing)."""
    centres: list[tuple[float, float]] = []
    for _ in range(count * 6):
        centre = random_position(rng, size)
        if all((centre[0] - x) ** 2 + (centre[1] - y) ** 2 > (gap * radius) ** 2 for x, y in centres):
            centres.append(centre)
        if len(centres) >= count:
            break
    return centres


def _grid(rng: np.random.Generator, size: int, pitch: float) -> list[tuple[float, float]]:
    """Return centres on a grid with the spacing `pitch`, each moved a little at random."""
    steps = np.arange(pitch * rng.uniform(0.3, 0.8), size, pitch)
    return [
        (float(x + rng.normal(0, 0.06 * pitch)), float(y + rng.normal(0, 0.06 * pitch))) for y in steps for x in steps
    ]


def _coins(rng: np.random.Generator, size: int, difficulty: float) -> Scene:
    """Draw discs with an embossed relief, often grey, on an unevenly lit background."""
    grey = rng.random() < 0.7
    ground = np.full(3, rng.uniform(0.05, 0.75), np.float32) if grey else textures.random_colour(rng)
    canvas = Canvas(rng, size, difficulty, ground)
    if rng.random() < 0.7:  # under a lamp, parts of the background are as bright as the coins
        drift = (
            textures.noise(rng, (size, size), rng.uniform(1, 4), 2)
            if rng.random() < 0.5
            else textures.ramp(rng, (size, size))
        )
        canvas.image = ground + (drift[..., None] - 0.5) * rng.uniform(0.1, 0.6)
        canvas.image += (textures.noise(rng, (size, size), rng.uniform(40, 150), 2) - 0.5)[..., None] * rng.uniform(
            0, 0.12
        )
    radius = size * rng.uniform(0.05, 0.16 - 0.02 * difficulty) * (1.5 - 0.5 * difficulty)
    if rng.random() < 0.5:
        centres = _grid(rng, size, radius * rng.uniform(2.2, 3.4))
    else:
        centres = _spread(rng, size, radius, int(rng.integers(4, 30)), rng.uniform(1.7, 2.6))
    metal = np.clip(ground + rng.choice([-1, 1, 1, 1]) * rng.uniform(0.12, 0.5), 0.05, 0.95).astype(np.float32)
    relief, fineness = rng.uniform(0.02, 0.16), rng.uniform(8, 26)
    squeeze, spread = rng.uniform(0.0, 0.04), rng.uniform(0.0, 0.3)
    for centre in centres:
        own_radius = radius * (1 + spread * rng.uniform(-1, 0.6))
        mask = shapes.fill(size, _disc(rng, centre, own_radius, squeeze))
        if rng.random() < 0.3:
            canvas.shadow(mask, rng.uniform(0.1, 0.5))
        tone = np.clip(metal + rng.normal(0, 0.05), 0, 1).astype(np.float32)
        canvas.put(mask, partial(_metal, rng, tone, relief, fineness))
    return canvas.finish()


def _disc(rng: np.random.Generator, centre: tuple[float, float], radius: float, squeeze: float) -> shapes.Points:
    """Return the outline (72, 2) of a worn disc whose radius varies by about the share `squeeze`."""
    angle = np.linspace(0, 2 * np.pi, 72, endpoint=False) + rng.uniform(0, 1)
    worn = radius * (1 + rng.normal(0, squeeze) * np.cos(2 * angle) + 0.5 * rng.normal(0, squeeze) * np.cos(3 * angle))
    return np.asarray(np.stack([worn * np.cos(angle), worn * np.sin(angle)], 1) + centre, np.float64)


def _metal(
    rng: np.random.Generator, tone: NDArray[np.float32], relief: float, fineness: float, inside: NDArray[np.bool_]
) -> textures.Image:
    """Paint a coin with a rim, a raised shape in the middle and a worn relief, lit from one side."""
    shape = (inside.shape[0], inside.shape[1])
    height = textures.noise(rng, shape, fineness / 3, 3)
    height += 0.6 * (textures.dome(inside, 1.0) < rng.uniform(0.04, 0.14))
    side = max(shape)
    motif = shapes.random_shape(rng, side, (side / 2, side / 2), side * rng.uniform(0.2, 0.35))[: shape[0], : shape[1]]
    height += rng.uniform(0.2, 0.8) * motif
    height = np.asarray(cv2.GaussianBlur(height, (0, 0), max(0.5, side / rng.uniform(30, 70))), np.float32)
    lit = tone + textures.emboss(rng, height, relief)[..., None]
    lit = lit + (textures.noise(rng, shape, 2, 1) - 0.5)[..., None] * rng.uniform(0, 0.25)
    return np.asarray(lit, np.float32)


def _beans(rng: np.random.Generator, size: int, difficulty: float) -> Scene:
    """Draw a heap of similar, rounded, shaded objects, like beans, pills, fruit or pebbles."""
    canvas = Canvas(rng, size, difficulty, textures.random_colour(rng))
    radius = size * rng.uniform(0.05, 0.14) * (1.6 - 0.6 * difficulty)
    base = textures.contrasting_colour(rng, canvas.background, 0.18)
    rough, vary = rng.uniform(0.0, 0.2), rng.uniform(0.02, 0.15)
    for centre in _spread(rng, size, radius, int(rng.integers(5, int(12 + 20 * difficulty))), rng.uniform(0.9, 2.0)):
        own_radius = radius * rng.uniform(0.7, 1.2)
        mask = shapes.fill(size, shapes.radial_outline(rng, centre, own_radius, rough))
        if rng.random() < 0.5:
            canvas.shadow(mask, rng.uniform(0.2, 0.6))
        tone = np.clip(base + rng.normal(0, vary, 3), 0, 1).astype(np.float32)
        share = 2 * own_radius / size

        def surface(inside: NDArray[np.bool_], t: NDArray[np.float32] = tone, s: float = share) -> textures.Image:
            return shade(rng, textures.paint(rng, (inside.shape[0], inside.shape[1]), t, s), inside)

        if canvas.put(mask, surface) and rng.random() < 0.15:
            draw_parts(canvas, mask, own_radius, tone)
    return canvas.finish()


def _cells(rng: np.random.Generator, size: int, difficulty: float) -> Scene:
    """Draw cells under a microscope: bright on dark or dark on bright, some with a halo and some with nuclei."""
    grey = rng.random() < 0.7
    dark_field = rng.random() < 0.55
    ground = np.full(3, rng.uniform(0.0, 0.3) if dark_field else rng.uniform(0.55, 0.95), np.float32)
    tint = np.ones(3, np.float32) if grey else np.clip(textures.random_colour(rng) + 0.3, 0, 1)
    canvas = Canvas(rng, size, difficulty, ground)
    haze = textures.noise(rng, (size, size), rng.uniform(2, 20), 3)[..., None]
    canvas.image = np.asarray(ground * tint + (haze - 0.5) * rng.uniform(0, 0.15), np.float32)
    radius = size * np.exp(rng.uniform(np.log(0.025), np.log(0.13))) * (1.5 - 0.5 * difficulty)
    rough, nuclei, halo = rng.uniform(0.0, 0.22), rng.random() < 0.35, rng.random() < 0.3
    step = rng.uniform(0.15, 0.5) * (1 if dark_field else -1)
    vary, soft = rng.uniform(0.0, 0.5), rng.uniform(0.2, 1.0)
    count = int(min(rng.integers(8, 90), 0.6 * (size / radius) ** 2 / 3 + 3))
    for centre in _spread(rng, size, radius, count, rng.uniform(1.2, 2.2)):
        own_radius = radius * rng.uniform(0.7, 1.2)
        mask = shapes.fill(size, shapes.radial_outline(rng, centre, own_radius, rough))
        level = step * (1 - vary * rng.random())
        if halo:
            canvas.shadow(mask, -0.3 if dark_field else 0.4)

        def surface(inside: NDArray[np.bool_], gain: float = level) -> textures.Image:
            body = soft + (1 - soft) * textures.dome(inside, 0.6)
            grain = 1 + (textures.noise(rng, (inside.shape[0], inside.shape[1]), 6, 2) - 0.5) * 0.4
            return np.asarray(np.clip((ground + (gain * body * grain)[..., None]), 0, 1) * tint, np.float32)

        if canvas.put(mask, surface) and nuclei and own_radius > 0.035 * size:
            middle = (centre[0] + rng.normal(0, 0.15 * own_radius), centre[1] + rng.normal(0, 0.15 * own_radius))
            nucleus = shapes.fill(size, shapes.radial_outline(rng, middle, own_radius * rng.uniform(0.3, 0.5), 0.05))
            canvas.put_part(nucleus, partial(surface, gain=1.8 * level))
    return canvas.finish()


def _tiles(rng: np.random.Generator, size: int, difficulty: float) -> Scene:
    """Divide the image into adjoining regions without background, like fields or tissue."""
    canvas = Canvas(rng, size, difficulty, textures.random_colour(rng))
    count = int(rng.integers(4, int(8 + 14 * difficulty)))
    sites = rng.uniform(0, size, (count, 2)).astype(np.float32)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    bend = rng.uniform(0, 0.12) * size
    x = x + bend * textures.noise(rng, (size, size), 6, 3)
    y = y + bend * textures.noise(rng, (size, size), 6, 3)
    nearest, owner = np.full((size, size), np.inf, np.float32), np.zeros((size, size), np.int32)
    for number, (site_x, site_y) in enumerate(sites):
        distance = (x - site_x) ** 2 + (y - site_y) ** 2
        closer = distance < nearest
        nearest[closer], owner[closer] = distance[closer], number
    for number in range(count):
        tone = textures.contrasting_colour(rng, canvas.background, 0.05)
        canvas.put(owner == number, partial(paint_region, rng, tone, 0.4))
    for radius in rng.uniform(0.04, 0.16, int(rng.integers(0, 5))) * size:
        draw_object(canvas, shapes.random_shape(rng, size, random_position(rng, size), radius), radius, 0.15)
    return canvas.finish()


def _writing(rng: np.random.Generator, size: int, difficulty: float) -> Scene:
    """Draw lines of letters, as on paper or a sign."""
    canvas = Canvas(rng, size, difficulty, textures.random_colour(rng))
    radius = size * rng.uniform(0.04, 0.12) * (1.4 - 0.4 * difficulty)
    ink = textures.contrasting_colour(rng, canvas.background, 0.25)
    rows = np.arange(radius * 1.5, size, radius * rng.uniform(2.4, 4.0))
    for row in rows[: int(rng.integers(1, 6))]:
        for column in np.arange(radius * rng.uniform(1, 3), size, radius * rng.uniform(2.0, 2.8)):
            if rng.random() < 0.8:
                letter = shapes.glyph(rng, size, (float(column), float(row)), radius)
                canvas.put(letter, partial(paint_region, rng, ink, 0.1))
    return canvas.finish()


KINDS: tuple[tuple[Callable[[np.random.Generator, int, float], Scene], float], ...] = (
    (_mixed_objects, 0.44), (_coins, 0.15), (_beans, 0.11), (_cells, 0.17), (_tiles, 0.10), (_writing, 0.03),
)  # fmt: skip
"""The kinds of scenes with their shares of all scenes."""


HELD_OUT_SEED = 10_000_000
"""Seeds from this number on are reserved for tests and measurements; training rejects them."""


def generate_scene(seed: int, size: int = 512, difficulty: float = 1.0) -> Scene:
    """Draw the scene of a seed. The same arguments give the same scene, byte for byte.

    Args:
        seed: number of the scene, at least 0. Scenes from `HELD_OUT_SEED` on are not used for training.
    """
    if seed < 0 or size < 64 or not 0 <= difficulty <= 1:
        raise ConfigurationError(
            f"cannot draw a scene for seed {seed}, size {size}, difficulty {difficulty}: the seed must be at least 0, "
            "the size at least 64 and the difficulty within 0..1"
        )
    rng = np.random.default_rng(seed)
    kinds = np.array([share for _, share in KINDS])
    draw = KINDS[int(rng.choice(len(KINDS), p=kinds / kinds.sum()))][0]
    return draw(rng, size, difficulty)
