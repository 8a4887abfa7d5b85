"""Simulated prompts: regions to segment, first clicks, boxes drawn in haste, and clicks that correct an error.

Coordinates are x and y in input pixels. The labels are those of SAM: 1 for a click inside the region, 0 for a click
outside, 2 and 3 for the corners of a box.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from .dataset import Example

CELL = 4
"""Input pixels for each cell of the low-resolution masks, along one axis."""

_MIN_CELLS = 4.0  # smaller regions are not chosen: a low-resolution mask of them teaches little
_AREA_POWER = 0.4  # a positive power chooses large regions, which are rare, a little more often
_PART_WEIGHT = 0.25  # relative frequency of a part; that of an object is 1
CENTRE_SHARE = 0.5  # share of clicks at the centre of a region; the others are anywhere inside it
BOX_JITTER = 0.05  # standard deviation of a corner as a share of the box's side (SAM: 10 %, at most 20 of 1024 pixels)

Region = NDArray[np.bool_]
Target = NDArray[np.float32]


@dataclass(frozen=True)
class ImagePrompts:
    """The P prompts of one image.

    Attributes:
        regions: bool (P, S, S), the region that each prompt points at; all False if it points at no object.
        targets: float32 (P, S/4, S/4), the share of each cell that the region covers.
        clicks: float32 (P, 2), x and y of the first click of each prompt.
    """

    regions: Region
    targets: Target
    clicks: NDArray[np.float32]


def draw_prompts(
    rng: np.random.Generator, example: Example, count: int, absent_share: float = 0.06, boxes: int = 0
) -> ImagePrompts | None:
    """Choose regions (objects and parts) of an example at random, and click into each.

    Args:
        rng: the source of randomness.
        example: the example.
        count: number of prompts P.
        absent_share: share of the prompts that click on the background instead and point at no object, 0..1.
        boxes: number of prompts, at the end, that always have a region, since the caller turns them into boxes.

    Returns:
        The prompts, or None if the example has no region that is large enough.
    """
    chosen = _choose_regions(rng, example, count)
    if not chosen:
        return None
    regions = np.stack([(example.parts if is_part else example.labels) == number for is_part, number in chosen])
    clicks = np.stack([click_inside(rng, region) for region in regions])
    background = example.labels == 0
    if float(background.mean()) > 0.1:
        for index in np.flatnonzero(rng.random(count - boxes) < absent_share):
            regions[index] = False
            clicks[index] = click_inside(rng, background)
    return ImagePrompts(regions, shrink(regions), clicks)


def _choose_regions(rng: np.random.Generator, example: Example, count: int) -> list[tuple[bool, int]]:
    """Draw `count` pairs (region is a part, number of the region), without repetition if there are enough regions."""
    min_area = _MIN_CELLS * CELL**2
    candidates: list[tuple[bool, int]] = []
    weights: list[float] = []
    for is_part, numbers in ((False, example.labels), (True, example.parts)):
        areas = np.bincount(numbers.ravel())
        fitting = [i for i in range(1, len(areas)) if areas[i] >= min_area]
        candidates += [(is_part, i) for i in fitting]
        weights += [(_PART_WEIGHT if is_part else 1.0) * float(areas[i]) ** _AREA_POWER for i in fitting]
    if not candidates:
        return []
    shares = np.array(weights) / sum(weights)
    order = rng.choice(len(candidates), size=count, p=shares, replace=len(candidates) < count)
    return [candidates[i] for i in order]


def shrink(regions: Region) -> Target:
    """Average regions, bool (P, S, S), over cells of 4x4 pixels. Returns float32 (P, S/4, S/4) in 0..1."""
    count, height, width = regions.shape
    cells = regions.reshape(count, height // CELL, CELL, width // CELL, CELL)
    return np.asarray(cells.mean((2, 4), dtype=np.float32))


def click_inside(rng: np.random.Generator, region: Region) -> NDArray[np.float32]:
    """Choose the innermost pixel or a random pixel of a region, bool (H, W), that is not empty.

    Returns:
        float32 (2,), x and y.
    """
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    top, left = rows[0], columns[0]
    window = region[top : rows[-1] + 1, left : columns[-1] + 1]
    if rng.random() < CENTRE_SHARE:
        depth = cv2.distanceTransform(np.pad(window, 1).astype(np.uint8), cv2.DIST_L2, 3)[1:-1, 1:-1]
        index = int(depth.argmax())
    else:
        inside = np.flatnonzero(window)
        index = int(inside[int(rng.integers(len(inside)))])
    row, column = divmod(index, window.shape[1])
    return np.array([column + left, row + top], np.float32)


def shaken_box(rng: np.random.Generator, region: Region, frame: int) -> NDArray[np.float32]:
    """Return the box of a region as drawn in haste: each corner is moved at random, except in 30 % of the boxes.

    Args:
        rng: the source of randomness.
        region: bool (S, S), not empty.
        frame: side in pixels of the frame that the region's image is a window of. It scales the limit of the movement,
            20 of 1024 pixels.

    Returns:
        float32 (2, 2), x and y of the top left and of the bottom right corner.
    """
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    corners = np.array([[columns[0], rows[0]], [columns[-1] + 1, rows[-1] + 1]], np.float32)
    sides = corners[1] - corners[0]
    limit = frame * 20 / 1024
    shake = np.clip(rng.normal(0, BOX_JITTER, (2, 2)) * sides, -limit, limit)
    if rng.random() < 0.3:
        shake = np.zeros((2, 2))
    return np.asarray(np.clip(corners + shake, 0, region.shape[0]), np.float32)


def correction_clicks(
    rng: np.random.Generator, masks: NDArray[np.bool_], target: Target
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Click into the error region of each mask, as in the training of SAM (Kirillov et al., 2023, appendix A).

    Args:
        rng: the source of randomness.
        masks: bool (P, h, w), the current masks.
        target: float32 (P, h, w), the share of each cell that the object covers.

    Returns:
        float32 points (P, 2), x and y in input pixels, and float32 labels (P,): 1 for a click on missing pixels, 0 for
        one on surplus pixels. If a mask has no error, the click is inside the object.
    """
    points, labels = np.zeros((len(masks), 2), np.float32), np.zeros(len(masks), np.float32)
    for index, (mask, share) in enumerate(zip(masks, target, strict=True)):
        expected = share > 0.5
        missing, surplus = expected & ~mask, mask & ~expected
        wrong = missing.sum() + surplus.sum()
        positive = bool(missing.sum() > rng.random() * wrong) if wrong else True
        region = missing if positive and missing.any() else surplus if surplus.any() else expected
        positive = positive or not surplus.any()
        if not region.any():  # there is no object, and the mask is empty too
            region, positive = np.ones_like(mask), False
        points[index] = click_inside(rng, region) * CELL + rng.integers(0, CELL, 2)
        labels[index] = float(positive)
    return points, labels
