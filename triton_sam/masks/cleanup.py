"""Cleans masks: fills holes, drops specks, clips to the box, smooths the outline, keeps the clicked part.

All steps are off by default, so that masks equal those of the official predictors.
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
from .parts import find_parts
from .rle import BoolArray

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
        if self.max_hole_area:
            logits = _replace_small(logits, logits <= 0, self.max_hole_area, FILLED)
        if self.max_sprinkle_area:
            logits = _replace_small(logits, logits > 0, self.max_sprinkle_area, DROPPED)
        return logits

    def clean_mask(self, mask: BoolArray, points: npt.ArrayLike = (), box: npt.ArrayLike | None = None) -> BoolArray:
        """Apply the steps for full-size masks.

        Args:
            mask: bool (H,W).
            points: (N,2) foreground clicks, x and y in pixels of the image.
            box: (4,) as x1,y1,x2,y2 in pixels of the image, or None.

        Returns:
            bool (H,W); the array itself if unchanged.
        """
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


def check_cleanup(cleanup: Any) -> None:
    """Check an argument ``cleanup``, a Cleanup or None.

    Raises:
        InputError: it is neither.
    """
    if cleanup is not None and not isinstance(cleanup, Cleanup):
        raise InputError(f"cleanup must be a Cleanup, for example Cleanup(keep_clicked=True), not {cleanup!r:.60}")


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
