"""The search for all objects of an image: a generator that requests embeddings and parts, and yields its progress.

Every step follows automatic_mask_generator.py and utils/amg.py of the packages segment_anything and sam2, so that the
masks equal theirs. The caller chooses how to compute a part, see parts.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from ..families.base import FloatArray, Size
from ..masks.boxes import Box, suppressed
from ..masks.cleanup import remove_small_regions
from ..masks.rle import BoolArray
from .parameters import Parameters
from .parts import Found, FoundMask, FoundObject, Part, crop_boxes, last_pixels

POINTS_PER_REQUEST = 8
"""Default number of points in one request for masks. A CPU decodes them one by one."""


@dataclass(frozen=True)
class Encode:
    """A request for the embeddings of the image or of a crop. The answer is passed to Part.image unchanged."""

    image: Image.Image


@dataclass(frozen=True)
class NextParts:
    """The parts that the search requests next, in sequence. It needs no answer."""

    parts: Sequence[Part]


class FoundObjects(list[FoundObject]):
    """The objects of an image as a list, in the order of the official generators.

    Attributes:
        reason: if there is no object, a sentence about the number of masks that each filter dropped; else None.
    """

    def __init__(self, found: Found) -> None:
        super().__init__(found.objects)
        self.reason = None if found.masks else found.reason
        self.decodes = found.decodes


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search. It needs no answer."""

    done: int
    total: int
    clicks: Clicks
    found: Found

    def masks(self) -> list[FoundMask]:
        """Return the objects so far. A later, better one may replace one of them."""
        return self.found.masks + self.clicks.kept()


Search = Generator["Encode | NextParts | Part | SearchProgress", Any, Found]
"""A running search. It returns all objects."""


def search_in_parts(image: Image.Image, parameters: Parameters, points_per_request: int = POINTS_PER_REQUEST) -> Search:
    """Search for all objects of an image, and request the masks under a few points at a time.

    Args:
        points_per_request: points in one request for masks, at least 1.
    """
    crops = list(_crops_with_points(image.size, parameters))
    total = sum(len(parameters.grid(layer)) for _, layer in crops)
    found, done = Found(), 0
    for crop, layer in crops:
        part = image if len(crops) == 1 else image.crop(crop)
        encoded = yield Encode(part)
        clicks = Clicks(encoded, crop, image.size, parameters, found)
        points = parameters.grid(layer) * np.array(part.size)
        starts = range(0, len(points), points_per_request)
        parts = [clicks.part(points[start : start + points_per_request]) for start in starts]
        yield NextParts(parts)
        for each in parts:
            clicks.add((yield each))
            done += len(each.points)
            yield SearchProgress(done, total, clicks, found)
        kept = clicks.kept()
        found.dropped["box_nms_thresh"] += len(clicks.masks) - len(kept)
        found.masks += kept
    if len(crops) > 1:
        _suppress_crops(found, parameters.crop_nms_thresh)
    if parameters.min_mask_region_area:
        drop_small_regions(found, parameters)
    return found


def _crops_with_points(size: Size, parameters: Parameters) -> Iterator[tuple[Box, int]]:
    """Yield the crops that have pixels and points. In very small images, rounding leaves some crops without either."""
    for crop, layer in crop_boxes(size, parameters.crop_n_layers, parameters.crop_overlap_ratio):
        if crop[0] < crop[2] and crop[1] < crop[3] and len(parameters.grid(layer)):
            yield crop, layer


class Clicks:
    """The clicks on one crop. Masks that pass the filters are added to ``masks``."""

    def __init__(self, image: Any, crop: Box, whole: Size, parameters: Parameters, found: Found) -> None:
        self.masks: list[FoundMask] = []
        self._image, self._crop, self._whole = image, crop, whole
        self._parameters, self._found = parameters, found

    def kept(self) -> list[FoundMask]:
        """Return the masks that remain after suppressing those with overlapping boxes."""
        boxes, scores = [each.box for each in self.masks], [each.score for each in self.masks]
        return [self.masks[index] for index in suppressed(boxes, scores, self._parameters.box_nms_thresh)]

    def part(self, points: FloatArray) -> Part:
        """Return the request for the masks under some points (N,2)."""
        return Part(self._image, points, self._crop, self._whole, self._parameters)

    def add(self, seen: Found) -> None:
        """Add the result of a part."""
        self._found.decodes += seen.decodes
        self._found.candidates += seen.candidates
        self._found.dropped += seen.dropped
        self.masks += seen.masks


def _suppress_crops(found: Found, threshold: float) -> None:
    """Drop masks that duplicate masks of other crops. Masks of smaller crops win."""
    scores = [1 / _area(each.crop) for each in found.masks]
    kept = suppressed([each.placed_box for each in found.masks], scores, threshold)
    found.dropped["crop_nms_thresh"] += len(found.masks) - len(kept)
    found.masks = [found.masks[index] for index in kept]


def drop_small_regions(found: Found, parameters: Parameters) -> None:
    """Fill small holes and drop small parts, and then drop masks that this has made duplicates.

    Reference: SamAutomaticMaskGenerator.postprocess_small_regions. Unchanged masks win.
    """
    cleaned, scores = [], []
    for each in found.masks:
        mask = each.segment().mask
        clean: BoolArray = remove_small_regions(mask, parameters.min_mask_region_area)
        unchanged = clean is mask
        scores.append(float(unchanged))
        cleaned.append(each if unchanged else _with_mask(each, clean))
    threshold = max(parameters.box_nms_thresh, parameters.crop_nms_thresh)
    kept = suppressed([each.placed_box for each in cleaned], scores, threshold)
    found.dropped["min_mask_region_area"] += len(cleaned) - len(kept)
    found.masks = [cleaned[index] for index in kept]


def _with_mask(found: FoundMask, mask: BoolArray) -> FoundMask:
    """Return a copy of an object with another mask (H,W) in its crop."""
    left, top, right, bottom = found.crop
    part = mask[top:bottom, left:right]
    return dataclasses.replace(found, bits=np.packbits(part), box=last_pixels(part))


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])
