"""Clean-up of masks: fill holes, drop specks, clip to the box, smooth the outline, keep the part under the click.

All of it is off by default, so that masks equal those of the official predictors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from .._common.checks import check_fields, check_names, number, switch
from .._common.values import json_kind
from ..errors import InputError
from ..families.base import FloatArray
from .boxes import mask_to_box
from .parts import find_parts
from .rle import BoolArray

FILLED, DROPPED = 10.0, -10.0
"""The logits that holes and specks get; those of SAM2Transforms.postprocess_masks."""
MAX_THRESHOLD = 32.0
"""Official predictors clamp logits to this range."""
MAX_SMOOTH = 100.0
REACH = 4
"""A Gaussian blur does not change pixels that are more than this many radii away from an edge."""
CLIP_SLOPE = 8.0
"""Logits fall by this much for each cell outside of a box, so that the outline on the screen follows the box."""


@dataclass(frozen=True)
class Cleanup:
    """How masks are cleaned. The steps run in the order of these fields, but ``mask_threshold`` comes first; without
    any, masks stay as they are.

    The threshold and the first two change the low-resolution logits before they are resized, as ``SAM2ImagePredictor``
    does with its arguments of the same names: an area is in pixels of this small mask (256 x 256 over the whole image,
    SAM3 288 x 288), and so means the same for an image of any size. The others change the full-size mask.

    Args:
        max_hole_area: holes of at most this many low-resolution pixels are filled. 0: none.
        max_sprinkle_area: connected parts of at most this many low-resolution pixels are dropped. 0: none.
        clip_to_box: whether nothing outside the box of the prompt is kept. A prompt without a box is not clipped.
        smooth: radius in pixels of the image, 0..100, over which the outline is smoothed. 0: not at all.
        min_mask_region_area: holes are filled, and connected parts dropped, that have fewer pixels of the image than
            this; of a mask with only such parts, the largest stays. 0: none. The argument of
            ``SamAutomaticMaskGenerator``.
        keep_clicked: whether only connected parts stay that a foreground click hits. A mask that no such click hits
            stays as it is, so that a prompt without clicks keeps all parts.
        mask_threshold: logits above it are foreground, -32..32. A lower number gives a larger mask.

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
        """Read the members of a JSON object; members that are missing have their defaults.

        Raises:
            InputError: it is no object, there is no such member, or a value has a wrong type or range.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(members, Mapping):
            raise InputError(f"cleanup must be an object with any of {', '.join(names)}, not {json_kind(members)}")
        check_names(members, names, InputError, "cleanup: ")
        return cls(**members)

    def to_json(self) -> dict[str, Any]:
        """Return the members that differ from their defaults, ready for JSON."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}

    @property
    def changes_nothing(self) -> bool:
        """Whether every step is off."""
        return self == Cleanup()

    def clean_logits(self, logits: FloatArray) -> FloatArray:
        """Take the steps for low-resolution logits (h,w).

        Equals sam2.utils.transforms.SAM2Transforms.postprocess_masks before its resize, less the threshold.

        Returns:
            float32 (h,w), foreground where > 0: holes get 10, specks -10. The array itself if nothing changes.
        """
        if self.mask_threshold:
            logits = logits - np.float32(self.mask_threshold)
        if self.max_hole_area:
            logits = _replace_small(logits, logits <= 0, self.max_hole_area, FILLED)
        if self.max_sprinkle_area:
            logits = _replace_small(logits, logits > 0, self.max_sprinkle_area, DROPPED)
        return logits

    def clean_mask(self, mask: BoolArray, points: npt.ArrayLike = (), box: npt.ArrayLike | None = None) -> BoolArray:
        """Take the steps for full-size masks.

        Args:
            mask: bool (H,W).
            points: (N,2) foreground clicks, x and y in pixels of the image.
            box: (4,) as x1,y1,x2,y2 in pixels of the image, or None.

        Returns:
            bool (H,W); the array itself if nothing changes.
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
        """Take the steps on logits alone, for an outline on a screen; without smooth and min_mask_region_area.

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
    """Check an argument ``cleanup``: a Cleanup, or None.

    Raises:
        InputError: it is neither.
    """
    if cleanup is not None and not isinstance(cleanup, Cleanup):
        raise InputError(f"cleanup must be a Cleanup, for example Cleanup(keep_clicked=True), not {cleanup!r:.60}")


def remove_small_regions(mask: BoolArray, area: float) -> BoolArray:
    """Fill holes, and then drop parts, of fewer than ``area`` pixels.

    Equals sam2.utils.amg.remove_small_regions(mask, area, "holes"), and then "islands" of its result.

    Args:
        mask: bool (H,W).
        area: pixels.

    Returns:
        bool (H,W); the array itself if nothing changes.
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
        bool (H,W); the array itself if no point hits the mask, or if nothing changes.
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
    """Smooth the outline of a mask: blur it with a Gaussian, and cut it at one half.

    Straight edges stay where they are; corners become rounder, and details that are smaller than the radius vanish. It
    is one step of the scheme by Merriman, Bence and Osher, "Diffusion generated motion by mean curvature" (1992).

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
    """Return how far the centre of each cell (h,w) lies inside a box, in cells; outside it is negative."""
    x1, y1, x2, y2 = np.asarray(box, np.float32)
    rows, columns = (np.arange(side, dtype=np.float32) + np.float32(0.5) for side in shape)
    across, down = np.minimum(columns - x1, x2 - columns), np.minimum(rows - y1, y2 - rows)
    inside: FloatArray = np.minimum(across[None, :], down[:, None])
    return inside
