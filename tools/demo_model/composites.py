"""Scenes of cut-outs over photographs, with an exact mask of each visible region.

A cut-out is rotated, scaled, recoloured, lit and softened before it is drawn, often with the texture of a photograph,
so that flat colours do not reveal an object. Its parts are regions of one colour inside it, and smaller cut-outs on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tools.demo_model.examples import spread
from tools.demo_model.materials import Materials, Pixels
from triton_sam.errors import ConfigurationError
from triton_sam.scenes import shapes, textures
from triton_sam.scenes.canvas import Canvas, Scene, random_position
from triton_sam.scenes.scenes import HELD_OUT_SEED

_COLOURS = 5  # clusters of colours for finding parts
_PART_SIDE = 72  # side in pixels for finding parts
_MAX_PARTS = 3
_PART_SHARE = (0.03, 0.6)  # of the cut-out's area


@dataclass(frozen=True, eq=False)
class _Sprite:
    """An object ready to be drawn.

    Args:
        pixels: float32 (h, w, 3), RGB in 0..1.
        alpha: float32 (h, w), 0..1.
        parts: bool (h, w) each.
    """

    pixels: textures.Image
    alpha: textures.Field
    parts: tuple[shapes.Mask, ...] = ()


def generate_composite(materials: Materials, seed: int, size: int = 512, difficulty: float = 1.0) -> Scene:
    """Draw the composite of a seed. The same arguments and materials give the same scene, byte for byte.

    Args:
        seed: number of the scene, at least 0. Scenes from `HELD_OUT_SEED` on are not used for training.
        size: side of the square image in pixels, at least 64.
    """
    if seed < 0 or size < 64 or not 0 <= difficulty <= 1:
        raise ConfigurationError(
            f"cannot draw a composite for seed {seed}, size {size}, difficulty {difficulty}: the seed must be at least "
            "0, the size at least 64 and the difficulty within 0..1"
        )
    rng = np.random.default_rng([seed, 0xC0117A6E])
    canvas = Canvas(rng, size, difficulty, textures.random_colour(rng))
    ground = materials.photograph(rng, (size, size)).astype(np.float32) / 255
    if rng.random() < 0.3:  # out of focus
        ground = np.asarray(cv2.GaussianBlur(ground, (0, 0), size / 512 * rng.uniform(1, 6)), np.float32)
    canvas.image = ground
    draw = list(_KINDS)[int(rng.choice(len(_KINDS), p=list(_KINDS.values())))]
    draw(canvas, materials)
    return canvas.finish()


def held_out_composite(materials: Materials, number: int, size: int = 512) -> Scene:
    """Draw a held-out composite; `materials` should be the held-out ones. Difficulties are spread evenly over 0..1."""
    return generate_composite(materials, HELD_OUT_SEED + number, size, spread(number))


def _objects(canvas: Canvas, materials: Materials) -> None:
    """Draw some cut-outs of all sizes that occlude each other, larger ones first."""
    rng, size = canvas.rng, canvas.size
    count = int(rng.integers(1, int(5 + 9 * canvas.difficulty)))
    for radius in _radii(canvas, (0.05, 0.42), count):
        sprite = _cutout_sprite(rng, materials, materials.cutout(rng), radius)
        _paste(canvas, sprite, random_position(rng, size))
        if radius > 0.15 * size and rng.random() < 0.25:
            _paste_part(canvas, materials, radius)


def _radii(canvas: Canvas, shares: tuple[float, float], count: int) -> list[float]:
    """Draw the radii of objects in pixels, the largest first, within a range of shares of the canvas."""
    low, high = np.log(shares)
    return sorted(np.exp(canvas.rng.uniform(low, high, count)) * canvas.size, reverse=True)


def _swarm(canvas: Canvas, materials: Materials) -> None:
    """Draw many instances of one or two cut-outs, in rows or in a heap."""
    rng, size = canvas.rng, canvas.size
    radius = size * np.exp(rng.uniform(np.log(0.04), np.log(0.15)))
    kinds = [materials.cutout(rng) for _ in range(1 + int(rng.random() < 0.3))]
    in_rows = rng.random() < 0.3
    places = (
        _rows(rng, size, radius)
        if in_rows
        else _heap(rng, size, int(rng.integers(5, int(10 + 30 * canvas.difficulty))))
    )
    turn = 0.0 if in_rows else rng.choice([10.0, 180.0])
    for place in places[:60]:
        sprite = _cutout_sprite(
            rng,
            materials,
            kinds[int(rng.integers(len(kinds)))],
            radius * rng.uniform(0.75, 1.2),
            turn,
            with_parts=False,
        )
        _paste(canvas, sprite, place)


def _heap(rng: np.random.Generator, size: int, count: int) -> list[tuple[float, float]]:
    return [random_position(rng, size) for _ in range(count)]


def _rows(rng: np.random.Generator, size: int, radius: float) -> list[tuple[float, float]]:
    steps = np.arange(radius, size, radius * rng.uniform(2.0, 3.2))
    places = [
        (float(x + rng.normal(0, radius / 10)), float(y + rng.normal(0, radius / 10))) for y in steps for x in steps
    ]
    return [places[index] for index in rng.permutation(len(places))]


def _patches(canvas: Canvas, materials: Materials) -> None:
    """Draw shapes with textures of photographs, which differ from the background more in texture than in colour."""
    rng, size = canvas.rng, canvas.size
    for radius in _radii(canvas, (0.06, 0.35), int(rng.integers(2, int(5 + 8 * canvas.difficulty)))):
        side = max(8, int(2.6 * radius))
        mask = shapes.random_shape(rng, side, (side / 2, side / 2), radius)
        texture = materials.photograph(rng, (side, side)).astype(np.float32) / 255
        _paste(canvas, _Sprite(_light(rng, texture), _soften(rng, mask.astype(np.float32))), random_position(rng, size))


def _clutter(canvas: Canvas, materials: Materials) -> None:
    """Draw a crowd of different cut-outs that hides most of the background, and a few more on top."""
    _scatter(canvas, materials, int(canvas.rng.integers(10, int(16 + 24 * canvas.difficulty))), (0.05, 0.22))


def _scatter(canvas: Canvas, materials: Materials, count: int, shares: tuple[float, float]) -> None:
    """Draw different cut-outs anywhere. Their radii are within a range of shares of the canvas."""
    rng, size = canvas.rng, canvas.size
    for _ in range(count):
        radius = size * np.exp(rng.uniform(*np.log(shares)))
        sprite = _cutout_sprite(rng, materials, materials.cutout(rng), radius, with_parts=False)
        _paste(canvas, sprite, random_position(rng, size))


def _chimeras(canvas: Canvas, materials: Materials) -> None:
    """Draw objects whose parts look unrelated, like a person in clothes.

    With one texture per object, the model would learn that objects end with their texture.
    """
    rng, size = canvas.rng, canvas.size
    count = int(rng.integers(1, int(4 + 6 * canvas.difficulty)))
    for radius in _radii(canvas, (0.08, 0.42), count):
        _paste(canvas, _chimera(rng, materials, radius), random_position(rng, size))


def _large(canvas: Canvas, materials: Materials) -> None:
    """Draw one to three objects that fill much of the image or exceed it, most of them at the bottom like people."""
    rng, size = canvas.rng, canvas.size
    for radius in _radii(canvas, (0.22, 0.6), int(rng.integers(1, 4))):
        place = (float(rng.uniform(0.1, 0.9) * size), float(rng.uniform(0.3, 1.0) * size))
        if rng.random() < 0.6:
            _paste(canvas, _chimera(rng, materials, radius), place)
        else:
            _paste(canvas, _cutout_sprite(rng, materials, materials.cutout(rng), radius), place)
            if rng.random() < 0.5:
                _paste_part(canvas, materials, radius)
    _scatter(canvas, materials, int(rng.integers(0, int(3 + 6 * canvas.difficulty))), (0.04, 0.15))


def _chimera(rng: np.random.Generator, materials: Materials, radius: float) -> _Sprite:
    """Fill the outline of a cut-out with two to six surfaces. Up to three of them are its parts."""
    placed = _turned(rng, materials.cutout(rng), radius, None)
    shape = (placed.shape[0], placed.shape[1])
    alpha = _soften(rng, placed[..., 3].astype(np.float32) / 255)
    pixels = _recolour(rng, placed[..., :3].astype(np.float32) / 255)
    regions = _split(rng, shape, int(rng.integers(2, 7)))
    smallest, largest = (share * float(alpha.sum()) for share in _PART_SHARE)
    parts: list[shapes.Mask] = []
    for number in range(int(regions.max()) + 1):
        inside = np.asarray(regions == number)
        choice = rng.random()
        if choice < 0.45:
            pixels[inside] = (materials.photograph(rng, shape).astype(np.float32) / 255)[inside]
        elif choice < 0.7:
            pixels[inside] = textures.random_colour(rng)
        inside &= alpha >= 0.5
        if smallest <= inside.sum() <= largest:
            parts.append(inside)
    return _Sprite(_light(rng, pixels), alpha, tuple(parts[:_MAX_PARTS]))


def _split(rng: np.random.Generator, shape: tuple[int, int], count: int) -> NDArray[np.int64]:
    """Divide a rectangle into regions around random points, with crooked borders: int64 (h, w), 0..count-1."""
    rows, columns = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    bend = rng.uniform(0, 0.5) * min(shape)
    rows, columns = (axis + bend * (textures.noise(rng, shape, rng.uniform(1, 5), 2) - 0.5) for axis in (rows, columns))
    squeeze = np.exp(rng.normal(0, 0.5))  # regions lie above each other more often than not, or beside each other
    middles = rng.uniform(0, 1, (count, 2)) * shape
    distances = [(rows - y) ** 2 * squeeze + (columns - x) ** 2 / squeeze for y, x in middles]
    return np.asarray(np.argmin(distances, axis=0))


def _cutout_sprite(
    rng: np.random.Generator,
    materials: Materials,
    cutout: Pixels,
    radius: float,
    turn: float | None = None,
    with_parts: bool = True,
) -> _Sprite:
    """Rotate, scale and recolour a cut-out, whose longer side becomes twice the radius, in pixels.

    Args:
        cutout: uint8 (h, w, 4).
        turn: maximum angle in degrees; None rotates most cut-outs slightly and some by any angle.
    """
    placed = _turned(rng, cutout, radius, turn)
    pixels = placed[..., :3].astype(np.float32) / 255
    alpha = placed[..., 3].astype(np.float32) / 255
    parts = _parts(rng, placed) if with_parts and radius > 24 and rng.random() < 0.5 else ()
    pixels = _recolour(rng, pixels)
    if rng.random() < 0.5:  # a surface is rarely flat
        texture = materials.photograph(rng, (placed.shape[0], placed.shape[1])).mean(2) / 255
        pixels = pixels * (1 + rng.uniform(0.2, 1.0) * (texture - texture.mean()))[..., None].astype(np.float32)
    return _Sprite(_light(rng, pixels), _soften(rng, alpha), parts)


def _turned(rng: np.random.Generator, cutout: Pixels, radius: float, turn: float | None) -> Pixels:
    """Scale, stretch, flip and rotate a cut-out. Returns uint8 (h, w, 4)."""
    limit = turn if turn is not None else (20.0 if rng.random() < 0.75 else 180.0)
    height, width = cutout.shape[:2]
    scale = 2 * radius / max(height, width)
    across, down = (scale * float(np.exp(rng.normal(0, 0.12))) for _ in range(2))
    if rng.random() < 0.5:
        cutout = cutout[:, ::-1]
    if max(across, down) < 0.7:  # average first, because a warp samples single pixels
        size = (max(2, round(width * across)), max(2, round(height * down)))
        cutout = np.asarray(cv2.resize(np.ascontiguousarray(cutout), size, interpolation=cv2.INTER_AREA), np.uint8)
        (height, width), across, down = cutout.shape[:2], 1.0, 1.0
    angle = np.deg2rad(rng.uniform(-limit, limit))
    matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ np.diag([across, down])
    corners = matrix @ np.array([[0, width, 0, width], [0, 0, height, height]])
    low, high = corners.min(1), corners.max(1)
    size = (int(high[0] - low[0]) + 3, int(high[1] - low[1]) + 3)
    move = np.concatenate([matrix, (1 - low)[:, None]], 1)
    return np.asarray(cv2.warpAffine(np.ascontiguousarray(cutout), move, size, flags=cv2.INTER_LINEAR), np.uint8)


def _recolour(rng: np.random.Generator, pixels: textures.Image) -> textures.Image:
    """Change hue, saturation and contrast randomly, strongly in a third of the cases."""
    strong = rng.random() < 0.35
    if strong:
        pixels = pixels[..., rng.permutation(3)]
    grey = pixels.mean(2, keepdims=True)
    pixels = grey + (pixels - grey) * rng.uniform(0.2, 1.1)
    low, high = sorted(rng.uniform(0, 1, 2)) if strong else (rng.uniform(0, 0.15), rng.uniform(0.75, 1.0))
    contrast = max(high - low, 0.35)
    return np.asarray(min(low, 1 - contrast) + contrast * pixels, np.float32)


def _light(rng: np.random.Generator, pixels: textures.Image) -> textures.Image:
    """Light a surface unevenly."""
    shape = (pixels.shape[0], pixels.shape[1])
    field = textures.ramp(rng, shape) if rng.random() < 0.6 else textures.noise(rng, shape, rng.uniform(1, 4), 2)
    return np.asarray(pixels * (1 + rng.uniform(0, 0.6) * (field - 0.5))[..., None], np.float32)


def _soften(rng: np.random.Generator, alpha: textures.Field) -> textures.Field:
    """Blur an outline a little, as a lens does."""
    return np.asarray(cv2.GaussianBlur(alpha, (0, 0), rng.uniform(0.3, 1.2)), np.float32)


def _parts(rng: np.random.Generator, cutout: Pixels) -> tuple[shapes.Mask, ...]:
    """Find regions of one colour inside a cut-out, uint8 (h, w, 4): at most three, bool (h, w) each."""
    height, width = cutout.shape[:2]
    scale = min(1.0, _PART_SIDE / max(height, width))
    small = cv2.resize(cutout, (max(2, int(width * scale)), max(2, int(height * scale))), interpolation=cv2.INTER_AREA)
    inside = np.asarray(small[..., 3] > 127)
    if inside.sum() < 200:
        return ()
    colours = np.asarray(cv2.medianBlur(np.ascontiguousarray(small[..., :3]), 3), np.float32)[inside]
    criteria = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 8, 1.0)
    cv2.setRNGSeed(int(rng.integers(1 << 30)))
    _, numbers, _ = cv2.kmeans(
        colours, _COLOURS, np.zeros((len(colours), 1), np.int32), criteria, 1, cv2.KMEANS_PP_CENTERS
    )
    found: list[NDArray[np.bool_]] = []
    for number in range(_COLOURS):
        same = np.zeros(inside.shape, np.uint8)
        same[inside] = numbers.ravel() == number
        count, labels, stats, _ = cv2.connectedComponentsWithStats(same, connectivity=4)
        shares = stats[1:, cv2.CC_STAT_AREA] / inside.sum()
        fits = [i for i in range(1, count) if _PART_SHARE[0] <= shares[i - 1] <= _PART_SHARE[1]]
        found += [np.asarray(labels == i) for i in fits]
    order = rng.permutation(len(found))[:_MAX_PARTS]
    return tuple(_enlarge(found[i], (width, height)) for i in order)


def _enlarge(mask: shapes.Mask, size: tuple[int, int]) -> shapes.Mask:
    return np.asarray(cv2.resize(mask.astype(np.float32), size, interpolation=cv2.INTER_LINEAR) > 0.5)


def _paste_part(canvas: Canvas, materials: Materials, radius: float) -> None:
    """Draw a small cut-out on the newest object, as its part."""
    rng = canvas.rng
    rows, columns = np.nonzero(canvas.labels == canvas.count)
    if len(rows) == 0:
        return
    at = int(rng.integers(len(rows)))
    sprite = _cutout_sprite(rng, materials, materials.cutout(rng), radius * rng.uniform(0.2, 0.45), with_parts=False)
    _paste(canvas, sprite, (float(columns[at]), float(rows[at])), as_part=True)


def _paste(canvas: Canvas, sprite: _Sprite, place: tuple[float, float], as_part: bool = False) -> None:
    """Draw a sprite centred at x, y, randomly with a shadow."""
    rng = canvas.rng
    window, cut = _overlap(sprite.alpha.shape, place, canvas.size)
    alpha, pixels = sprite.alpha[cut], sprite.pixels[cut]
    if not (alpha >= 0.5).any():
        return
    mask = np.zeros((canvas.size, canvas.size), bool)
    mask[window] = alpha >= 0.5
    if not as_part and rng.random() < 0.4:
        canvas.shadow(mask, rng.uniform(0.15, 0.6))
    under = canvas.image[window].copy()
    canvas.image[window] = under + alpha[..., None] * (np.clip(pixels, 0, 1) - under)
    if as_part:
        canvas.put_part(mask, None)
    elif canvas.put(mask, None):
        for part in sprite.parts:
            mask[window] = part[cut]
            canvas.put_part(mask, None)


def _overlap(
    shape: tuple[int, ...], place: tuple[float, float], size: int
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return the part of a square canvas that a sprite covers, and the part of the sprite that is inside the canvas."""
    windows, cuts = [], []
    for side, middle in zip(shape, (place[1], place[0]), strict=False):
        start = round(middle - side / 2)
        low, high = max(start, 0), max(min(start + side, size), 0)
        windows.append(slice(low, max(high, low)))
        cuts.append(slice(low - start, max(high, low) - start))
    return (windows[0], windows[1]), (cuts[0], cuts[1])


_KINDS: dict[Callable[[Canvas, Materials], None], float] = {
    _objects: 0.3, _swarm: 0.1, _patches: 0.06, _clutter: 0.09, _chimeras: 0.17, _large: 0.28,
}  # fmt: skip
"""The share of each kind of composite."""
