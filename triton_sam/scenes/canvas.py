"""The canvas of a scene: objects drawn back to front on a label map, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from . import shapes, textures

_MIN_VISIBLE = 0.0003  # of the picture's area: smaller rests of occluded objects are part of nothing


_MAX_OBJECTS = 250  # label maps are uint8


@dataclass(frozen=True)
class Scene:
    """One generated picture and what is in it.

    Attributes:
        image: uint8 (H, W, 3), RGB.
        labels: uint8 (H, W): 0 for the background, otherwise the number of the topmost object (1..N).
        parts: uint8 (H, W): 0, or the number of a part (1..M); a part lies inside the visible region of one object.
        part_parents: for each part, the number of its object (1..N).
    """

    image: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    parts: NDArray[np.uint8]
    part_parents: tuple[int, ...]

    @property
    def masks(self) -> NDArray[np.bool_]:
        """All visible regions, bool (K, H, W): first the N objects, pairwise disjoint, then the M parts."""
        objects = np.arange(1, int(self.labels.max()) + 1, dtype=np.uint8)[:, None, None]
        parts = np.arange(1, len(self.part_parents) + 1, dtype=np.uint8)[:, None, None]
        return np.concatenate([self.labels[None] == objects, self.parts[None] == parts])

    @property
    def parents(self) -> NDArray[np.int64]:
        """For each of `masks`, the index of the mask that it is a part of; -1 for an object. int64 (K,)."""
        objects = int(self.labels.max())
        return np.array([-1] * objects + [parent - 1 for parent in self.part_parents], np.int64)


class Canvas:
    """The picture, label map and part map while objects are put on it."""

    def __init__(self, rng: np.random.Generator, size: int, difficulty: float, base: NDArray[np.float32]) -> None:
        self.rng, self.size, self.difficulty, self.base = rng, size, difficulty, base
        self.picture = textures.paint(rng, (size, size), base, 1.0)
        self.labels = np.zeros((size, size), np.uint8)
        self.parts = np.zeros((size, size), np.uint8)
        self.part_owner: list[int] = []
        self.count = 0

    def _bounds(self, mask: NDArray[np.bool_]) -> tuple[slice, slice] | None:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if len(rows) == 0 or self.count >= _MAX_OBJECTS:
            return None
        return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)

    def put(self, mask: NDArray[np.bool_], surface: Callable[[NDArray[np.bool_]], textures.Picture]) -> bool:
        """Draw an object over everything so far; `surface` paints the mask's bounding box."""
        bounds = self._bounds(mask)
        if bounds is None:
            return False
        inside = mask[bounds]
        self.picture[bounds][inside] = surface(inside)[inside]
        self.count += 1
        self.labels[bounds][inside] = self.count
        self.parts[bounds][inside] = 0
        return True

    def put_part(self, mask: NDArray[np.bool_], surface: Callable[[NDArray[np.bool_]], textures.Picture]) -> None:
        """Draw a part onto the visible region of the newest object."""
        mask = mask & (self.labels == self.count)
        bounds = self._bounds(mask)
        if bounds is None or len(self.part_owner) >= _MAX_OBJECTS:
            return
        inside = mask[bounds]
        self.picture[bounds][inside] = surface(inside)[inside]
        self.part_owner.append(self.count)
        self.parts[bounds][inside] = len(self.part_owner)

    def shadow(self, mask: NDArray[np.bool_], strength: float) -> None:
        """Darken the picture where a soft shadow of the object falls."""
        reach = self.size * self.rng.uniform(0.004, 0.025)
        shift = np.array([[1, 0, self.rng.normal(0, reach)], [0, 1, self.rng.normal(0, reach)]], np.float32)
        cast = cv2.warpAffine(mask.astype(np.float32), shift, (self.size, self.size))
        cast = cv2.blur(cast, (2 * int(reach) + 1,) * 2)
        self.picture *= (1 - strength * cast)[..., None]

    def finish(self) -> Scene:
        """Drop what is hardly visible, renumber, and take the photograph."""
        least = max(12.0, _MIN_VISIBLE * self.size**2)
        labels, kept = _renumber(self.labels, self.count, least)
        parts = np.where(labels > 0, self.parts, 0).astype(np.uint8)
        areas = np.bincount(self.labels.ravel(), minlength=self.count + 1)
        parts, kept_parts = _renumber(parts, len(self.part_owner), least, areas[[0, *self.part_owner]] * 0.9)
        owners = tuple(kept[self.part_owner[part - 1]] for part in kept_parts)
        image = textures.camera(self.rng, np.clip(self.picture, 0, 1), self.difficulty)
        return Scene(image, labels, parts, owners)


def _renumber(
    numbers: NDArray[np.uint8], count: int, least: float, most: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.uint8], dict[int, int]]:
    """Keep the regions of an area in [least, most]; number them from 1. Returns the map and old -> new."""
    areas = np.bincount(numbers.ravel(), minlength=count + 1).astype(np.float64)
    fits = areas >= least
    if most is not None:
        fits &= areas <= most
    kept = {old: new for new, old in enumerate((i for i in range(1, count + 1) if fits[i]), start=1)}
    table = np.zeros(count + 1, np.uint8)
    table[list(kept)] = list(kept.values())
    return table[numbers], kept


def place(rng: np.random.Generator, size: int) -> tuple[float, float]:
    """Draw a place (x, y), in pixels, inside a scene."""
    return float(rng.uniform(0.03, 0.97) * size), float(rng.uniform(0.03, 0.97) * size)


def thing(canvas: Canvas, mask: NDArray[np.bool_], radius: float, least: float) -> None:
    """Put one object of any look, with shading, outline, shadow and parts by chance."""
    rng, share = canvas.rng, 2 * radius / canvas.size
    colour = textures.contrasting_colour(rng, canvas.base, least)
    shaded, rim = rng.random() < 0.4, rng.random() < 0.15
    if rng.random() < 0.3:
        canvas.shadow(mask, rng.uniform(0.2, 0.6))

    def surface(inside: NDArray[np.bool_]) -> textures.Picture:
        shape = (inside.shape[0], inside.shape[1])
        picture = textures.paint(rng, shape, colour, share)
        if shaded:
            picture = shade(rng, picture, inside)
        if rim:
            border = textures.dome(inside, 1.0) < rng.uniform(0.05, 0.2)
            picture[border] = picture[border] * rng.uniform(0.3, 1.6)
        return picture

    if canvas.put(mask, surface) and share > 0.1 and rng.random() < 0.4:
        decorate(canvas, mask, radius, colour)


def decorate(canvas: Canvas, mask: NDArray[np.bool_], radius: float, colour: NDArray[np.float32]) -> None:
    """Put one to three parts on the newest object."""
    rng = canvas.rng
    rows, columns = np.nonzero(mask)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(rows)))
        extent = radius * rng.uniform(0.2, 0.6)
        part = shapes.random_shape(rng, canvas.size, (float(columns[at]), float(rows[at])), extent)
        tone = textures.contrasting_colour(rng, colour, 0.12)
        share = 2 * extent / canvas.size
        canvas.put_part(part, partial(flat, rng, tone, share))


def flat(
    rng: np.random.Generator, colour: NDArray[np.float32], share: float, inside: NDArray[np.bool_]
) -> textures.Picture:
    """Paint one colour with a texture of its own into the region ``inside`` (H,W)."""
    return textures.paint(rng, (inside.shape[0], inside.shape[1]), colour, share)


def shade(rng: np.random.Generator, picture: textures.Picture, inside: NDArray[np.bool_]) -> textures.Picture:
    """Light a rounded body: diffuse side light, darker rim, sometimes a highlight."""
    height = textures.dome(inside, rng.uniform(0.4, 0.8))
    softened = np.asarray(cv2.GaussianBlur(height, (0, 0), max(1.0, inside.shape[0] / 16)), np.float32)
    diffuse = textures.emboss(rng, softened, rng.uniform(0.03, 0.15))
    lit = picture * (rng.uniform(0.55, 0.9) + (1.05 - 0.6) * height)[..., None] + diffuse[..., None]
    if rng.random() < 0.3:
        rows, columns = inside.shape
        y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
        spot = ((y / rows - rng.uniform(0.25, 0.5)) ** 2 + (x / columns - rng.uniform(0.25, 0.6)) ** 2) / 0.01
        lit = lit + rng.uniform(0.2, 0.6) * np.exp(-spot)[..., None]
    return np.asarray(lit, np.float32)
