"""The search for all objects of an image: a generator that requests embeddings and parts, and yields its progress.

Every step follows automatic_mask_generator.py and utils/amg.py of the packages segment_anything and sam2, so that the
masks equal theirs. A client or a session model can compute a part, clicks on some points: it gives see() the function
that decodes the points.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..families.base import Family, FloatArray, Size
from ..masks.boxes import Box, corner_and_size, mask_to_box, suppressed
from ..masks.cleanup import remove_small_regions
from ..masks.resize import full_size_masks
from ..masks.rle import BoolArray
from ..masks.segment import Segment
from .parameters import Parameters

Decode = Callable[[Any, FloatArray, "FloatArray | None", bool], tuple[FloatArray, FloatArray]]
"""Returns unclamped logits (P,C,h,w) and scores (P,C) of P objects. The arguments are the encoded image, one foreground
point of each object (P,1,2) in pixels of this image, the logits (P,1,h,w) to refine or None, and whether to return all
candidates."""
_EDGE = 20
"""A mask counts as cut off if its box is within this many pixels of the edge of its crop."""


def crop_boxes(size: Size, layers: int, overlap_ratio: float) -> Iterator[tuple[Box, int]]:
    """Yield the whole image and then all crops, each with its layer: generate_crop_boxes of the official code."""
    width, height = size
    yield (0, 0, width, height), 0
    for layer in range(1, layers + 1):
        count = 2**layer
        overlap = int(overlap_ratio * min(size) * (2 / count))
        wide, high = (math.ceil((overlap * (count - 1) + side) / count) for side in size)
        lefts, tops = ([(length - overlap) * index for index in range(count)] for length in (wide, high))
        for left, top in itertools.product(lefts, tops):
            yield (left, top, min(left + wide, width), min(top + high, height)), layer


def stability_of(inner: BoolArray, outer: BoolArray) -> float:
    """Return the IoU of the masks at a higher and a lower threshold, 0..1.

    It is 0.0 if both are empty, where the official code returns NaN. Reference: calculate_stability_score.
    """
    pixels, others = np.count_nonzero(inner), np.count_nonzero(outer)
    return float(np.float32(pixels) / np.float32(others)) if others else 0.0


def last_pixels(mask: BoolArray) -> Box:
    """Return the first and the last column and row of a mask as x1, y1, x2, y2; zeros if it is empty."""
    box = mask_to_box(mask)
    return (0, 0, 0, 0) if box is None else (box[0], box[1], box[2] - 1, box[3] - 1)


def is_cut_off(box: Box, crop: Box, whole: Size) -> bool:
    """Whether a box in pixels of its crop ends near an edge of the crop that is not one of the image."""
    placed = np.add(box, (crop[0], crop[1], crop[0], crop[1]))
    near_crop = np.abs(placed - crop) <= _EDGE
    near_image = np.abs(placed - (0, 0, *whole)) <= _EDGE
    return bool((near_crop & ~near_image).any())


@dataclass(frozen=True, eq=False, repr=False)  # Segment's repr shows no arrays
class FoundObject(Segment):
    """An object found without a prompt. ``score`` is the predicted IoU, ``object_index`` its index, from 0.

    Args:
        point: x, y of the click in pixels of the image.
    """

    stability_score: float = 0.0
    point: tuple[float, float] = (0.0, 0.0)
    crop_box: Box = (0, 0, 0, 0)


def official_record(found: FoundObject, box: Box, segmentation: Any) -> dict[str, Any]:
    """Return an object as a record of the official generators, with a box from its first to its last pixel."""
    return {
        "segmentation": segmentation,
        "area": found.area,
        "bbox": corner_and_size(box),
        "predicted_iou": found.score,
        "point_coords": [list(found.point)],
        "stability_score": found.stability_score,
        "crop_box": corner_and_size(found.crop_box),
    }


@dataclass(frozen=True, eq=False)
class FoundMask:
    """One object, stored in an eighth of the memory of the part of its mask inside its box.

    Args:
        bits: the mask in the box, see packed().
        point: x, y of the click in pixels of the crop.
        box: the first and the last column and row in pixels of the crop.
    """

    bits: npt.NDArray[np.uint8]
    score: float
    stability: float
    point: tuple[float, float]
    box: Box
    crop: Box
    size: Size

    @property
    def placed_box(self) -> Box:
        """The box in pixels of the image."""
        left, top = self.crop[:2]
        return self.box[0] + left, self.box[1] + top, self.box[2] + left, self.box[3] + top

    def segment(self, number: int = 0) -> FoundObject:
        """Return the object with its mask bool (H,W) at the size of the image; ``number`` is its index, from 0."""
        left, top = self.crop[:2]
        mask = np.zeros(self.size[::-1], np.bool_)
        part = mask[_inside(self.placed_box)]
        part[...] = np.unpackbits(self.bits, count=part.size).reshape(part.shape)
        point = (self.point[0] + left, self.point[1] + top)
        return FoundObject(mask, self.score, None, number, 0, self.stability, point, self.crop)

    def record(self) -> dict[str, Any]:
        """Return the record of the official generators, with COCO RLE."""
        found = self.segment()
        return official_record(found, self.placed_box, found.to_rle())


def packed(mask: BoolArray, box: Box) -> npt.NDArray[np.uint8]:
    """Return the pixels from the first to the last column and row, row by row, 8 pixels in a byte."""
    return np.packbits(mask[_inside(box)])


def _inside(box: Box) -> tuple[slice, slice]:
    return slice(box[1], box[3] + 1), slice(box[0], box[2] + 1)


@dataclass(frozen=True)
class Part:
    """A request for the masks under some points that pass the filters. The answer is Found.

    Args:
        points: float64 (N,2), x and y in pixels of the crop.
    """

    image: Any
    points: npt.NDArray[Any]
    crop: Box
    whole: Size
    parameters: Parameters

    @property
    def size(self) -> Size:
        """Width and height of the crop."""
        left, top, right, bottom = self.crop
        return right - left, bottom - top


@dataclass
class Found:
    """Objects of an image, and how they were found.

    Args:
        masks: the masks that pass the filters, in the order of the points; at the end of a search, in the order of the
            official generators.
    """

    masks: list[FoundMask] = field(default_factory=list)
    decodes: int = 0
    candidates: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def objects(self) -> list[FoundObject]:
        """The objects with their full-size masks."""
        return [each.segment(number) for number, each in enumerate(self.masks)]

    @property
    def reason(self) -> str:
        """A sentence about the number of masks that each filter dropped."""
        if not self.candidates:
            return "There were no points: give a higher points_per_side."
        parts = [f"{name} dropped {count}" for name, count in self.dropped.items() if count]
        return f"Of {self.candidates} masks, {', '.join(parts) or 'no filter dropped any'}: try lower thresholds."


def see(part: Part, family: Family, decode: Decode) -> Found:
    """Click on points, and filter their masks."""
    chosen, points, seen = part.parameters, part.points, Found()
    seen.decodes += len(points)
    logits, scores = decode(part.image, points[:, None], None, chosen.multimask_output)
    points = points.repeat(logits.shape[1], axis=0)
    logits, scores = logits.reshape(-1, *logits.shape[2:]), scores.ravel()
    seen.candidates += len(logits)
    if chosen.use_m2m:
        seen.decodes += len(points)
        limit = family.logit_limit
        clamped = logits if limit is None else np.clip(logits, -limit, limit)
        refined, better = decode(part.image, points[:, None], clamped[:, None], False)
        logits, scores = refined[:, 0], better.ravel()
    for low, score, point in zip(logits, scores, points, strict=True):
        _consider(part, family, seen, low, float(score), (float(point[0]), float(point[1])))
    return seen


def _consider(
    part: Part, family: Family, seen: Found, low: FloatArray, score: float, point: tuple[float, float]
) -> None:
    """Filter a mask. Scores are compared in FP32, as in torch: 19/20 passes 0.95."""
    chosen = part.parameters
    if chosen.pred_iou_thresh > 0 and not np.float32(score) > np.float32(chosen.pred_iou_thresh):
        seen.dropped["pred_iou_thresh"] += 1
        return
    threshold, offset = chosen.mask_threshold, chosen.stability_score_offset
    thresholds = (threshold, threshold + offset, threshold - offset)
    mask, inner, outer = full_size_masks(chosen.cleanup.clean_logits(low), part.size, family, thresholds)
    stability = stability_of(inner, outer)
    if chosen.stability_score_thresh > 0 and not np.float32(stability) >= np.float32(chosen.stability_score_thresh):
        seen.dropped["stability_score_thresh"] += 1
        return
    mask = chosen.cleanup.clean_mask(mask, [point])
    box = last_pixels(mask)
    if is_cut_off(box, part.crop, part.whole):
        seen.dropped["the edge of a crop"] += 1
        return
    seen.masks.append(FoundMask(packed(mask, box), score, stability, point, box, part.crop, part.whole))


POINTS_PER_REQUEST = 8
"""Default number of points in one request for masks. A CPU decodes them one by one."""


@dataclass(frozen=True)
class Encode:
    """A request for the embeddings of the image or of a crop. The answer is passed to Part.image unchanged.

    Args:
        crop: x1, y1, x2, y2 in pixels of the image; None for the whole image.
    """

    crop: Box | None


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
    """The progress of a search, counted in points. It needs no answer.

    Args:
        kept: the objects of earlier crops.
        seen: the masks of this crop that pass the filters so far.
    """

    done: int
    total: int
    kept: Sequence[FoundMask]
    seen: Sequence[FoundMask]
    box_nms_thresh: float

    def masks(self) -> list[FoundMask]:
        """Return the objects so far. A later, better one may replace one of them."""
        return [*self.kept, *_without_overlaps(self.seen, self.box_nms_thresh)]


Search = Generator["Encode | NextParts | Part | SearchProgress", Any, Found]
"""A running search. It returns all objects."""


def search_in_parts(size: Size, parameters: Parameters, points_per_request: int = POINTS_PER_REQUEST) -> Search:
    """Search for all objects of an image, and request the masks under a few points at a time.

    Args:
        size: width and height of the image in pixels.
        points_per_request: points in one request for masks, at least 1.
    """
    crops = list(_crops_with_points(size, parameters))
    total = sum(len(parameters.grid(layer)) for _, layer in crops)
    found, done = Found(), 0
    for crop, layer in crops:
        encoded = yield Encode(None if crop == (0, 0, *size) else crop)
        points = parameters.grid(layer) * (crop[2] - crop[0], crop[3] - crop[1])
        starts = range(0, len(points), points_per_request)
        parts = [Part(encoded, points[start : start + points_per_request], crop, size, parameters) for start in starts]
        yield NextParts(parts)
        masks: list[FoundMask] = []
        for each in parts:
            seen = yield each
            found.decodes += seen.decodes
            found.candidates += seen.candidates
            found.dropped += seen.dropped
            masks += seen.masks
            done += len(each.points)
            yield SearchProgress(done, total, found.masks, masks, parameters.box_nms_thresh)
        kept = _without_overlaps(masks, parameters.box_nms_thresh)
        found.dropped["box_nms_thresh"] += len(masks) - len(kept)
        found.masks += kept
        del encoded, parts, each  # the embeddings are freed before the next crop is encoded
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


def _without_overlaps(masks: Sequence[FoundMask], threshold: float) -> list[FoundMask]:
    """Return the masks that remain after suppressing those with overlapping boxes."""
    return [
        masks[index] for index in suppressed([each.box for each in masks], [each.score for each in masks], threshold)
    ]


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
    box = last_pixels(part)
    return dataclasses.replace(found, bits=packed(part, box), box=box)


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])
