"""Cleans masks: fills holes, drops specks, clips to the box, smooths the outline, keeps the clicked part.

All steps are off by default, so that masks equal those of the official predictors.

The connected parts of a mask are found on its runs instead of its pixels, so that large masks are fast. A run is a
maximal row of foreground pixels. Two runs of neighbouring rows touch if their columns overlap or meet at a corner
(8-connectivity, as in cv2.connectedComponentsWithStats and in the kernel of sam2.utils.misc). Runs that touch are one
part; the parts are found by union-find over all pairs at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from .._common.checks import check_fields, check_names, json_kind, number, switch
from ..errors import InputError
from ..families.base import FloatArray
from .boxes import mask_to_box
from .rle import BoolArray, IntArray, foreground


@dataclass(frozen=True, eq=False)
class Parts:
    """The K connected parts of a mask with R runs.

    Args:
        shape: height and width of the mask.
        starts: int64 (R,), the first pixel of each run, counted row by row.
        ends: int64 (R,), one past the last pixel of each run.
        labels: int64 (R,), the part 0..K-1 of each run. Parts are numbered in the order of their first pixels.
        areas: int64 (K,), pixels of each part.
    """

    shape: tuple[int, int]
    starts: IntArray
    ends: IntArray
    labels: IntArray
    areas: IntArray

    def __len__(self) -> int:
        return len(self.areas)

    def at(self, row: int, column: int) -> int | None:
        """Return the part at a pixel; None for background."""
        pixel = row * self.shape[1] + column
        run = int(np.searchsorted(self.starts, pixel, "right")) - 1
        return int(self.labels[run]) if run >= 0 and pixel < self.ends[run] else None

    def mask(self, kept: BoolArray) -> BoolArray:
        """Return the mask, bool (H,W), of the parts selected by ``kept``, bool (K,)."""
        chosen = kept[self.labels]
        starts, ends = self.starts[chosen], self.ends[chosen]
        height, width = self.shape
        edges = np.empty(2 * len(starts) + 2, np.int64)
        edges[0], edges[-1], edges[1:-1:2], edges[2:-1:2] = 0, height * width, starts, ends
        return np.repeat(np.arange(len(edges) - 1) % 2 == 1, np.diff(edges)).reshape(self.shape)


def find_parts(mask: BoolArray) -> Parts:
    """Find the connected parts of a mask, bool (H,W)."""
    rows, first, last = _runs(mask)
    labels = _joined(len(rows), *_touching(rows, first, last, mask.shape[1]))
    areas = np.bincount(labels, weights=last - first).astype(np.int64)  # exact below 2**53
    offsets = rows * mask.shape[1]
    return Parts((mask.shape[0], mask.shape[1]), offsets + first, offsets + last, labels, areas)


def innermost_points(parts: Parts, limit: int) -> list[list[float]]:
    """Return a point well inside of each part, x, y in pixels, for at most ``limit`` of the largest parts.

    The point is the centre of the middle one of the part's longest rows (at least 0.9 times the longest).
    """
    lengths, points = parts.ends - parts.starts, []
    for part in np.argsort(-parts.areas, kind="stable")[:limit]:
        runs = np.flatnonzero(parts.labels == part)
        long = runs[lengths[runs] >= 0.9 * lengths[runs].max()]
        chosen = long[len(long) // 2]
        row, column = divmod(int(parts.starts[chosen]), parts.shape[1])
        points.append([column + float(lengths[chosen]) / 2, row + 0.5])
    return points


def _runs(mask: BoolArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the row of each run, its first column, and one past its last column."""
    height, width = mask.shape
    if mask.size == 0:
        return (np.zeros(0, np.int64),) * 3
    flat = np.ascontiguousarray(mask).reshape(-1)
    changes = flat[1:] != flat[:-1]
    changes[width - 1 :: width] = True  # a run ends with its row
    edges = np.concatenate(([0], np.flatnonzero(changes) + 1, [height * width]))
    starts = edges[:-1][flat[edges[:-1]]]
    ends = edges[1:][flat[edges[:-1]]]
    rows = starts // width
    return rows, starts - rows * width, ends - rows * width


def _touching(rows: IntArray, first: IntArray, last: IntArray, width: int) -> tuple[IntArray, IntArray]:
    """Return all pairs of touching runs as two arrays: a run, and a run in the row above."""
    stride = width + 1  # so that the last end of a row is below the first start of the next
    starts, ends = rows * stride + first, rows * stride + last
    # With 8-connectivity, a run above touches if it ends at our first column or later, and starts at our end or before.
    lowest = np.searchsorted(ends, starts - stride, "left")
    highest = np.searchsorted(starts, ends - stride, "right")
    counts = np.maximum(highest - lowest, 0)
    below = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(len(below)) - np.repeat(np.cumsum(counts) - counts, counts)
    return below, lowest[below] + place


def _joined(count: int, one: IntArray, other: IntArray) -> IntArray:
    """Return the number 0..K-1 of the set of each of ``count`` elements, after joining the given pairs.

    Every round hooks each root onto the smallest root in its pairs, and then points each element to its root.
    """
    root: npt.NDArray[np.int64] = np.arange(count)
    while len(one):
        left, right = root[one], root[other]
        unequal = left != right
        one, other, left, right = one[unequal], other[unequal], left[unequal], right[unequal]
        np.minimum.at(root, np.maximum(left, right), np.minimum(left, right))
        while True:
            above = root[root]
            if np.array_equal(above, root):
                break
            root = above
    return np.unique(root, return_inverse=True)[1].reshape(-1).astype(np.int64)


FILLED, DROPPED = 10.0, -10.0
"""The logits of filled holes and dropped specks, as in SAM2Transforms.postprocess_masks."""
MAX_THRESHOLD = 32.0
"""Official predictors clamp logits to this range."""
MAX_SMOOTH = 100.0
REACH = 4
"""A Gaussian blur does not change pixels farther than this many radii from an edge."""
CLIP_SLOPE = 8.0
"""Decrease of the logits per cell outside of a box, so that the outline on the screen follows the box."""


@dataclass(frozen=True)
class Cleanup:
    """The steps that clean masks. They run in the order of these fields, but ``mask_threshold`` is first. Without
    steps, masks are unchanged.

    The threshold and the first two steps change the low-resolution logits before the resize, like the arguments of the
    same names of ``SAM2ImagePredictor``. Their areas are in pixels of the low-resolution mask (256 x 256 over the whole
    image, SAM3 288 x 288), and so are independent of the image size. The other steps change the full-size mask.

    Args:
        max_hole_area: maximum area of the holes that are filled, in low-resolution pixels. 0: none.
        max_sprinkle_area: maximum area of the connected parts that are dropped, in low-resolution pixels. 0: none.
        clip_to_box: whether to clip the mask to the box of the prompt, if the prompt has a box.
        smooth: radius in pixels of the image, 0..100, over which the outline is smoothed. 0: off.
        min_mask_region_area: smaller holes are filled and smaller connected parts are dropped, in pixels of the image.
            If all parts are smaller, the largest part is kept. 0: none. The argument of ``SamAutomaticMaskGenerator``.
        keep_clicked: whether to keep only the connected parts that a foreground click hits. If no foreground click hits
            the mask, for example without clicks, all parts are kept.
        mask_threshold: logits above it are foreground, -32..32. A lower threshold gives a larger mask.

    Raises:
        InputError: a value has a wrong type or range.
    """

    max_hole_area: float = number(0.0, 0)
    max_sprinkle_area: float = number(0.0, 0)
    clip_to_box: bool = switch(False)
    smooth: float = number(0.0, 0, MAX_SMOOTH)
    min_mask_region_area: float = number(0.0, 0)
    keep_clicked: bool = switch(False)
    mask_threshold: float = number(0.0, -MAX_THRESHOLD, MAX_THRESHOLD)

    def __post_init__(self) -> None:
        check_fields(self, InputError, "cleanup: ")

    @classmethod
    def from_json(cls, members: Any) -> Cleanup:
        """Read the members of a JSON object. Missing members have their defaults.

        Raises:
            InputError: not an object, an unknown member, or a value with a wrong type or range.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(members, Mapping):
            raise InputError(f"cleanup must be an object with any of {', '.join(names)}, not {json_kind(members)}")
        check_names(members, names, InputError, "cleanup: ")
        return cls(**members)

    def to_json(self) -> dict[str, Any]:
        """Return the members that differ from their defaults as JSON values."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}

    @property
    def changes_nothing(self) -> bool:
        """Whether all steps are off."""
        return self == Cleanup()

    def clean_logits(self, logits: FloatArray) -> FloatArray:
        """Apply the steps for low-resolution logits (h,w).

        Equals sam2.utils.transforms.SAM2Transforms.postprocess_masks before its resize, minus the threshold.

        Returns:
            float32 (h,w), foreground where > 0: filled holes are 10, dropped specks -10. The array itself if unchanged.
        """
        if self.mask_threshold:
            logits = logits - np.float32(self.mask_threshold)
        original = logits
        if self.max_hole_area:
            logits = _replace_small(logits, original <= 0, self.max_hole_area, FILLED)
        if self.max_sprinkle_area:
            logits = _replace_small(logits, original > 0, self.max_sprinkle_area, DROPPED)
        return logits

    def clean_mask(
        self, mask: npt.ArrayLike, points: npt.ArrayLike = (), box: npt.ArrayLike | None = None
    ) -> BoolArray:
        """Apply the steps for full-size masks.

        Args:
            mask: (H,W), foreground where not 0.
            points: (N,2) foreground clicks, x and y in pixels of the image.
            box: (4,) as x1,y1,x2,y2 in pixels of the image, or None.

        Returns:
            bool (H,W); a bool array itself if unchanged.
        """
        mask = foreground(mask)
        if self.clip_to_box and box is not None:
            mask = clip_to_box(mask, box)
        if self.smooth:
            mask = smooth_outline(mask, self.smooth)
        if self.min_mask_region_area:
            mask = remove_small_regions(mask, self.min_mask_region_area)
        return keep_clicked(mask, points) if self.keep_clicked else mask

    def clean_preview(
        self, logits: FloatArray, points: npt.ArrayLike = (), box: npt.ArrayLike | None = None
    ) -> FloatArray:
        """Apply the steps to logits for an outline on a screen, except smooth and min_mask_region_area.

        Args:
            logits: float32 (h,w) of the decoder.
            points: (N,2) foreground clicks, x and y in cells of the logits.
            box: (4,) as x1,y1,x2,y2 in cells of the logits, or None.

        Returns:
            float32 (h,w), foreground where > 0.
        """
        logits = self.clean_logits(logits)
        if self.clip_to_box and box is not None:
            logits = np.minimum(logits, _inside(box, logits.shape) * np.float32(CLIP_SLOPE))
        if self.keep_clicked:
            mask = logits > 0
            logits = np.where(mask & ~keep_clicked(mask, points), np.float32(DROPPED), logits)
        return logits


def remove_small_regions(mask: BoolArray, area: float) -> BoolArray:
    """Fill holes and then drop parts of fewer than ``area`` pixels.

    Equals sam2.utils.amg.remove_small_regions(mask, area, "holes"), and then "islands" on its result.

    Args:
        mask: bool (H,W).
        area: pixels.

    Returns:
        bool (H,W); the array itself if unchanged.
    """
    holes = find_parts(~mask)
    if (holes.areas < area).any():
        mask = ~holes.mask(holes.areas >= area)
    parts = find_parts(mask)
    kept = parts.areas >= area
    if kept.all():
        return mask
    if not kept.any():
        kept[np.argmax(parts.areas)] = True
    return parts.mask(kept)


def keep_clicked(mask: BoolArray, points: npt.ArrayLike) -> BoolArray:
    """Keep the connected parts (8-connectivity) that a point hits.

    Args:
        mask: bool (H,W).
        points: (N,2) as x, y in pixels; a point on the right or lower edge belongs to the last pixel.

    Returns:
        bool (H,W); the array itself if no point hits the mask, or if unchanged.
    """
    height, width = mask.shape
    pixels = np.asarray(points, np.float64).reshape(-1, 2).astype(np.int64)
    places = np.clip(pixels, 0, (width - 1, height - 1)) if mask.size else pixels[:0]
    if not any(mask[y, x] for x, y in places):
        return mask
    parts = find_parts(mask)
    hit = [part for x, y in places.tolist() if (part := parts.at(y, x)) is not None]
    kept = np.zeros(len(parts), np.bool_)
    kept[hit] = True
    return mask if kept.all() else parts.mask(kept)


def clip_to_box(mask: BoolArray, box: npt.ArrayLike) -> BoolArray:
    """Keep the pixels of a mask, bool (H,W), whose centres lie inside a box x1,y1,x2,y2 in pixels; a new array."""
    x1, y1, x2, y2 = np.maximum(np.ceil(np.asarray(box, np.float64) - 0.5).astype(np.int64), 0)
    clipped = np.zeros_like(mask)
    clipped[y1:y2, x1:x2] = mask[y1:y2, x1:x2]
    return clipped


def smooth_outline(mask: BoolArray, radius: float) -> BoolArray:
    """Smooth the outline of a mask by a Gaussian blur and a threshold at one half.

    Straight edges stay in place, corners become rounder, and details smaller than the radius vanish. This is one step
    of the scheme by Merriman, Bence and Osher, "Diffusion generated motion by mean curvature" (1992).

    Args:
        mask: bool (H,W).
        radius: standard deviation of the Gaussian, pixels.

    Returns:
        bool (H,W), a new array; the array itself if it is empty.
    """
    box = mask_to_box(mask)
    if box is None:
        return mask
    x1, y1, x2, y2 = box
    margin = math.ceil(REACH * radius) + 1
    part = np.s_[max(y1 - margin, 0) : y2 + margin, max(x1 - margin, 0) : x2 + margin]
    blurred = Image.fromarray(mask[part].astype(np.uint8) * np.uint8(255)).filter(ImageFilter.GaussianBlur(radius))
    smoothed = np.zeros_like(mask)
    smoothed[part] = np.asarray(blurred) > 127
    return smoothed


def _replace_small(logits: FloatArray, mask: BoolArray, area: float, value: float) -> FloatArray:
    parts = find_parts(mask)
    small = parts.areas <= area
    return np.where(parts.mask(small), np.float32(value), logits) if small.any() else logits


def _inside(box: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Return the distance of each cell's centre (h,w) inside a box, in cells; negative outside."""
    x1, y1, x2, y2 = np.asarray(box, np.float32)
    rows, columns = (np.arange(side, dtype=np.float32) + np.float32(0.5) for side in shape)
    across, down = np.minimum(columns - x1, x2 - columns), np.minimum(rows - y1, y2 - rows)
    inside: FloatArray = np.minimum(across[None, :], down[:, None])
    return inside
