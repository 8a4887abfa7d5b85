"""Simulated users: regions to ask for, first clicks, boxes with jitter, and corrections from the error region.

Coordinates are x, y in input pixels; label 1 is inside, 0 outside, 2 and 3 the corners of a box, as SAM numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from .dataset import Example

CELL = 4
"""Input pixels per cell of the low-resolution masks."""

_MIN_CELLS = 4.0  # smaller regions leave little to learn from in a low-resolution mask
_AREA_POWER = 0.25  # large regions are rare and asked for a little more often
_PART_SHARE = 0.25  # how often a part is asked for, against 1 for an object
_CENTRE_SHARE = 0.5  # clicks in the middle of a region; the others land anywhere in it
_BOX_JITTER = 0.05  # deviation of a box corner, in box sides (SAM: 10 %, at most 20 pixels of 1024)

Region = NDArray[np.bool_]
Target = NDArray[np.float32]


@dataclass(frozen=True)
class Asked:
    """The regions asked for in one image.

    Attributes:
        regions: bool (P, S, S); all False where the prompt points at no object.
        targets: float32 (P, S/4, S/4), the share of each cell that the region covers.
        clicks: float32 (P, 2), a first click for each.
    """

    regions: Region
    targets: Target
    clicks: NDArray[np.float32]


def ask(
    rng: np.random.Generator, example: Example, count: int, absent_share: float = 0.06, boxes: int = 0
) -> Asked | None:
    """Choose `count` regions of a scene, objects and parts, and click into each.

    A share of the prompts clicks on the background instead: there is no object. The last `boxes` of them are always
    regions. Returns None for a scene without any region large enough.
    """
    chosen = _choose(rng, example, count)
    if not chosen:
        return None
    regions = np.stack([(example.parts if is_part else example.labels) == number for is_part, number in chosen])
    clicks = np.stack([click_inside(rng, region) for region in regions])
    background = example.labels == 0
    if float(background.mean()) > 0.1:
        for index in np.flatnonzero(rng.random(count - boxes) < absent_share):
            regions[index] = False
            clicks[index] = click_inside(rng, background)
    return Asked(regions, shrink(regions), clicks)


def _choose(rng: np.random.Generator, example: Example, count: int) -> list[tuple[bool, int]]:
    """Draw (is a part, number) pairs, without repetition as far as there are enough."""
    least = _MIN_CELLS * CELL**2
    candidates: list[tuple[bool, int]] = []
    weights: list[float] = []
    for is_part, numbers in ((False, example.labels), (True, example.parts)):
        areas = np.bincount(numbers.ravel())
        fitting = [i for i in range(1, len(areas)) if areas[i] >= least]
        candidates += [(is_part, i) for i in fitting]
        weights += [(_PART_SHARE if is_part else 1.0) * float(areas[i]) ** _AREA_POWER for i in fitting]
    if not candidates:
        return []
    shares = np.array(weights) / sum(weights)
    order = rng.choice(len(candidates), size=count, p=shares, replace=len(candidates) < count)
    return [candidates[i] for i in order]


def shrink(regions: Region) -> Target:
    """Average bool (P, S, S) over cells of 4x4 pixels."""
    count, height, width = regions.shape
    cells = regions.reshape(count, height // CELL, CELL, width // CELL, CELL)
    return np.asarray(cells.mean((2, 4), dtype=np.float32))


def click_inside(rng: np.random.Generator, region: Region) -> NDArray[np.float32]:
    """Pick a point of a region that is not empty: its innermost pixel, or any. Returns x, y float32 (2,)."""
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    top, left = rows[0], columns[0]
    window = region[top : rows[-1] + 1, left : columns[-1] + 1]
    if rng.random() < _CENTRE_SHARE:
        depth = cv2.distanceTransform(np.pad(window, 1).astype(np.uint8), cv2.DIST_L2, 3)[1:-1, 1:-1]
        index = int(depth.argmax())
    else:
        inside = np.flatnonzero(window)
        index = int(inside[int(rng.integers(len(inside)))])
    row, column = divmod(index, window.shape[1])
    return np.array([column + left, row + top], np.float32)


def box_around(rng: np.random.Generator, region: Region, frame: int) -> NDArray[np.float32]:
    """Return the corners of a region's box, shaken; float32 (2, 2), top left then bottom right.

    `frame` is the side in pixels of the picture that the region is seen in, whole or through a window.
    """
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    corners = np.array([[columns[0], rows[0]], [columns[-1] + 1, rows[-1] + 1]], np.float32)
    sides = corners[1] - corners[0]
    most = frame * 20 / 1024
    shake = np.clip(rng.normal(0, _BOX_JITTER, (2, 2)) * sides, -most, most)
    if rng.random() < 0.3:
        shake = np.zeros((2, 2))
    return np.asarray(np.clip(corners + shake, 0, region.shape[0]), np.float32)


def correct(
    rng: np.random.Generator, found: NDArray[np.bool_], target: Target
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Click into the error region of each prompt, as SAM is trained and evaluated.

    Args:
        rng: the source of randomness.
        found: bool (P, h, w), the current masks.
        target: (P, h, w), the wanted ones.

    Returns:
        Points (P, 2) and labels (P,): 1 on what is missing, 0 on what is too much. Without any error the click
        falls into the object.
    """
    points, labels = np.zeros((len(found), 2), np.float32), np.zeros(len(found), np.float32)
    for index, (mask, share) in enumerate(zip(found, target, strict=True)):
        wanted = share > 0.5
        missing, surplus = wanted & ~mask, mask & ~wanted
        wrong = missing.sum() + surplus.sum()
        positive = bool(missing.sum() > rng.random() * wrong) if wrong else True
        region = missing if positive and missing.any() else surplus if surplus.any() else wanted
        positive = positive or not surplus.any()
        if not region.any():  # nothing is wanted and nothing was found
            region, positive = np.ones_like(mask), False
        points[index] = click_inside(rng, region) * CELL + rng.integers(0, CELL, 2)
        labels[index] = float(positive)
    return points, labels
