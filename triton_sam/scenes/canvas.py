"""The canvas of a scene, on which objects and their parts are drawn from back to front."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
from numpy.typing import NDArray

from ..masks.boxes import mask_to_box
from . import shapes, textures

Surface = Callable[[NDArray[np.bool_]], textures.Image]

_MIN_VISIBLE = 0.0003  # share of the image's area; a smaller visible region becomes background
_MAX_OBJECTS = 250  # label maps are uint8


@dataclass(frozen=True)
class Scene:
    """One generated image with its objects and parts.

    Attributes:
        labels: uint8 (H, W), the number (1..N) of the topmost object at each pixel, or 0 for the background.
        parts: uint8 (H, W), the number (1..M) of the part at each pixel, or 0. A part is inside the visible region of
            one object.
    """

    image: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    parts: NDArray[np.uint8]


class Canvas:
    """The image, the label map and the part map of a scene while its objects are drawn.

    Args:
        background: RGB in 0..1, float32 (3,), the base colour of the background.
    """

    def __init__(self, rng: np.random.Generator, size: int, difficulty: float, background: NDArray[np.float32]) -> None:
        self.rng, self.size, self.difficulty, self.background = rng, size, difficulty, background
        self.image = textures.paint(rng, (size, size), background, 1.0)
        self.labels = np.zeros((size, size), np.uint8)
        self.parts = np.zeros((size, size), np.uint8)
        self.part_owner: list[int] = []
        self.count = 0

    def _bounds(self, mask: NDArray[np.bool_]) -> tuple[slice, slice] | None:
        """Return the rows and columns of the mask; None if it is empty or the scene is full."""
        box = mask_to_box(mask)
        return None if box is None or self.count >= _MAX_OBJECTS else (slice(box[1], box[3]), slice(box[0], box[2]))

    def put(self, mask: NDArray[np.bool_], surface: Surface | None) -> bool:
        """Draw an object on top of all others.

        Args:
            surface: takes the mask cropped to its bounding box (h, w), and returns the painted box (h, w, 3). None
                only labels the object, after the caller has drawn its pixels.

        Returns:
            False if the object was not drawn because its mask is empty or the scene is full.
        """
        bounds = self._bounds(mask)
        if bounds is None:
            return False
        inside = mask[bounds]
        if surface is not None:
            self.image[bounds][inside] = surface(inside)[inside]
        self.count += 1
        self.labels[bounds][inside] = self.count
        self.parts[bounds][inside] = 0
        return True

    def put_part(self, mask: NDArray[np.bool_], surface: Surface | None) -> None:
        """Draw a part inside the visible region of the newest object; the arguments are those of `put`."""
        mask = mask & (self.labels == self.count)
        bounds = self._bounds(mask)
        if bounds is None or len(self.part_owner) >= _MAX_OBJECTS:
            return
        inside = mask[bounds]
        if surface is not None:
            self.image[bounds][inside] = surface(inside)[inside]
        self.part_owner.append(self.count)
        self.parts[bounds][inside] = len(self.part_owner)

    def shadow(self, mask: NDArray[np.bool_], strength: float) -> None:
        """Darken the image by a soft shadow of the object. A negative strength gives a bright halo."""
        reach = self.size * self.rng.uniform(0.004, 0.025)
        shift = np.array([[1, 0, self.rng.normal(0, reach)], [0, 1, self.rng.normal(0, reach)]], np.float32)
        cast = cv2.warpAffine(mask.astype(np.float32), shift, (self.size, self.size))
        cast = cv2.blur(cast, (2 * int(reach) + 1,) * 2)
        self.image *= (1 - strength * cast)[..., None]

    def finish(self) -> Scene:
        """Drop hardly visible regions, renumber the others without gaps, and apply the camera effects."""
        min_area = max(12.0, _MIN_VISIBLE * self.size**2)
        labels = _renumber(self.labels, self.count, min_area)
        parts = np.where(labels > 0, self.parts, 0).astype(np.uint8)
        areas = np.bincount(self.labels.ravel(), minlength=self.count + 1)
        parts = _renumber(parts, len(self.part_owner), min_area, areas[[0, *self.part_owner]] * 0.9)
        image = textures.camera(self.rng, np.clip(self.image, 0, 1), self.difficulty)
        return Scene(image, labels, parts)


def _renumber(
    numbers: NDArray[np.uint8], count: int, min_area: float, max_areas: NDArray[np.float64] | None = None
) -> NDArray[np.uint8]:
    """Keep the regions whose areas are within the limits, and number them from 1.

    Args:
        numbers: (H, W), the number (1..count) of the region at each pixel, or 0.
    """
    areas = np.bincount(numbers.ravel(), minlength=count + 1).astype(np.float64)
    fits = areas >= min_area
    if max_areas is not None:
        fits &= areas <= max_areas
    fits[0] = False
    return np.where(fits, np.cumsum(fits), 0).astype(np.uint8)[numbers]


def random_position(rng: np.random.Generator, size: int) -> tuple[float, float]:
    """Draw a position (x, y) inside a scene, in pixels."""
    return float(rng.uniform(0.03, 0.97) * size), float(rng.uniform(0.03, 0.97) * size)


def draw_object(canvas: Canvas, mask: NDArray[np.bool_], radius: float, min_contrast: float) -> None:
    """Draw one object with a random colour and texture, and by chance with shading, a rim, a shadow and parts."""
    rng, share = canvas.rng, 2 * radius / canvas.size
    colour = textures.contrasting_colour(rng, canvas.background, min_contrast)
    shaded, rim = rng.random() < 0.4, rng.random() < 0.15
    if rng.random() < 0.3:
        canvas.shadow(mask, rng.uniform(0.2, 0.6))

    def surface(inside: NDArray[np.bool_]) -> textures.Image:
        shape = (inside.shape[0], inside.shape[1])
        painted = textures.paint(rng, shape, colour, share)
        if shaded:
            painted = shade(rng, painted, inside)
        if rim:
            border = textures.dome(inside, 1.0) < rng.uniform(0.05, 0.2)
            painted[border] = painted[border] * rng.uniform(0.3, 1.6)
        return painted

    if canvas.put(mask, surface) and share > 0.1 and rng.random() < 0.4:
        draw_parts(canvas, mask, radius, colour)


def draw_parts(canvas: Canvas, mask: NDArray[np.bool_], radius: float, colour: NDArray[np.float32]) -> None:
    """Draw one to three parts, which differ from the object's colour, on the newest object."""
    rng = canvas.rng
    rows, columns = np.nonzero(mask)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(rows)))
        extent = radius * rng.uniform(0.2, 0.6)
        part = shapes.random_shape(rng, canvas.size, (float(columns[at]), float(rows[at])), extent)
        tone = textures.contrasting_colour(rng, colour, 0.12)
        share = 2 * extent / canvas.size
        canvas.put_part(part, partial(paint_region, rng, tone, share))


def paint_region(
    rng: np.random.Generator, colour: NDArray[np.float32], share: float, inside: NDArray[np.bool_]
) -> textures.Image:
    """Paint the bounding box of a region ``inside`` (H, W) with a random texture; a surface for `Canvas.put`."""
    return textures.paint(rng, (inside.shape[0], inside.shape[1]), colour, share)


def shade(rng: np.random.Generator, painted: textures.Image, inside: NDArray[np.bool_]) -> textures.Image:
    """Light a painted region like a rounded body: diffuse light from one side, a darker rim, sometimes a highlight."""
    height = textures.dome(inside, rng.uniform(0.4, 0.8))
    softened = np.asarray(cv2.GaussianBlur(height, (0, 0), max(1.0, inside.shape[0] / 16)), np.float32)
    diffuse = textures.emboss(rng, softened, rng.uniform(0.03, 0.15))
    lit = painted * (rng.uniform(0.55, 0.9) + (1.05 - 0.6) * height)[..., None] + diffuse[..., None]
    if rng.random() < 0.3:
        rows, columns = inside.shape
        y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
        spot = ((y / rows - rng.uniform(0.25, 0.5)) ** 2 + (x / columns - rng.uniform(0.25, 0.6)) ** 2) / 0.01
        lit = lit + rng.uniform(0.2, 0.6) * np.exp(-spot)[..., None]
    return np.asarray(lit, np.float32)
