"""The search for all objects of an image, as a generator: it asks for embeddings and masks, and tells its progress.

Every step follows automatic_mask_generator.py and utils/amg.py of the packages segment_anything and sam2, so that the
masks equal theirs. The caller carries the requests; a click is a request like any other, so this works with every
server.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..families.base import Family, FloatArray, Size
from ..masks.cleanup import remove_small_regions
from ..masks.resize import full_size_logits
from ..masks.rle import BoolArray
from ..masks.segment import Segment
from .filters import Box, crop_boxes, is_cut_off, last_pixels, stability_of, suppressed
from .parameters import Parameters

_POINTS_PER_REQUEST = 8
_STRIDES = (4, 2, 1)
"""The adaptive mode tries every fourth point in both directions first, then every second, then all others."""
_LARGEST_COVER = 0.2
"""In the adaptive mode, a mask with a larger share of its crop hides no points: it may be a background with objects."""


@dataclass(frozen=True)
class Encode:
    """Asks for the embeddings of the image or of a crop. The answer goes into Decode.image as it is."""

    image: Image.Image


@dataclass(frozen=True)
class Decode:
    """Asks for masks. The answer is logits (P,C,h,w) and scores (P,C).

    Args:
        image: the answer to Encode.
        points: (P,1,2) in pixels of the encoded image, one foreground point for each object.
        masks: logits (P,1,h,w) to refine.
        multimask: whether each object has three candidates.
    """

    image: Any
    points: FloatArray
    masks: FloatArray | None
    multimask: bool

    @property
    def labels(self) -> npt.NDArray[np.int32]:
        """Labels (P,1) of the points: all are foreground."""
        return np.ones(self.points.shape[:2], np.int32)


@dataclass(frozen=True, eq=False)
class FoundObject(Segment):
    """One object that was found without a prompt. ``score`` is the predicted IoU.

    Args:
        stability_score: 0..1, see Parameters.
        point: x, y of the click in pixels of the image.
        crop_box: the crop in which the object was found.
    """

    stability_score: float = 0.0
    point: tuple[float, float] = (0.0, 0.0)
    crop_box: Box = (0, 0, 0, 0)


@dataclass(frozen=True, eq=False)
class FoundMask:
    """One object in an eighth of the memory of its mask.

    Args:
        bits: the mask in the crop, row by row, 8 pixels in a byte.
        score: predicted IoU, 0..1.
        stability: see Parameters, 0..1.
        point: x, y of the click in pixels of the crop.
        box: the first and the last column and row in pixels of the crop.
        crop: the crop in pixels of the image.
        size: width and height of the image.
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

    def segment(self) -> FoundObject:
        """Return the object with its mask bool (H,W) in the size of the image."""
        left, top, right, bottom = self.crop
        shape = bottom - top, right - left
        mask = np.zeros(self.size[::-1], np.bool_)
        mask[top:bottom, left:right] = np.unpackbits(self.bits, count=math.prod(shape)).reshape(shape)
        point = (self.point[0] + left, self.point[1] + top)
        return FoundObject(mask, self.score, None, 0, 0, self.stability, point, self.crop)


@dataclass
class Found:
    """All objects of an image, and how they were found.

    Args:
        masks: the objects, in the order of the official generators.
        decodes: number of masks that the decoder was asked for, in points.
        candidates: number of masks before the filters.
        dropped: number of masks that each filter dropped, by the name of its parameter.
    """

    masks: list[FoundMask] = field(default_factory=list)
    decodes: int = 0
    candidates: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def objects(self) -> list[FoundObject]:
        """The objects with their full-size masks."""
        return [each.segment() for each in self.masks]

    @property
    def reason(self) -> str:
        """A sentence that says which filters dropped how many masks."""
        if not self.candidates:
            return "There were no points: give a higher points_per_side."
        parts = [f"{name} dropped {count}" for name, count in self.dropped.items() if count]
        return f"Of {self.candidates} masks, {', '.join(parts) or 'no filter dropped any'}: try lower thresholds."


class FoundObjects(list[FoundObject]):
    """The objects of an image as a list, in the order of the official generators.

    Args:
        found: the result of a search.

    Attributes:
        reason: a sentence that says which filters dropped how many masks, if there is no object; else None.
        decodes: number of masks that the decoder was asked for, in points.
    """

    def __init__(self, found: Found) -> None:
        super().__init__(found.objects)
        self.reason = None if found.masks else found.reason
        self.decodes = found.decodes


@dataclass(frozen=True)
class Step:
    """Tells the progress. It needs no answer.

    Args:
        done: points that are done.
        total: points in all.
        clicks: the clicks on the crop at hand.
        found: the objects of the crops before it.
    """

    done: int
    total: int
    clicks: Clicks
    found: Found

    def masks(self) -> list[FoundMask]:
        """Return the objects so far. A later, better one may replace one of them."""
        return self.found.masks + self.clicks.kept()


Search = Generator["Encode | Decode | Step", Any, Found]
"""A running search. It ends with all objects."""


def search(image: Image.Image, family: Family, parameters: Parameters) -> Search:
    """Search for all objects of an image.

    Args:
        image: the image, upright.
        family: the family of the models that answer.
        parameters: the grid and the filters.
    """
    crops = list(_crops_with_points(image.size, parameters))
    total = sum(len(parameters.grid(layer)) for _, layer in crops)
    found, done = Found(), 0
    for crop, layer in crops:
        part = image if len(crops) == 1 else image.crop(crop)
        encoded = yield Encode(part)
        clicks = Clicks(encoded, crop, image.size, family, parameters, found)
        for points in clicks.chunks(parameters.grid(layer) * np.array(part.size)):
            yield from clicks.click(points)
            done += len(points)
            yield Step(done, total, clicks, found)
        kept = clicks.kept()
        found.dropped["box_nms_thresh"] += len(clicks.masks) - len(kept)
        found.masks += kept
    if len(crops) > 1:
        _suppress_crops(found, parameters.crop_nms_thresh)
    if parameters.min_mask_region_area:
        drop_small_regions(found, parameters)
    return found


def _crops_with_points(size: Size, parameters: Parameters) -> Iterator[tuple[Box, int]]:
    """Yield the crops that have pixels and points. Rounding leaves none of them to some crops of very small images."""
    for crop, layer in crop_boxes(size, parameters.crop_n_layers, parameters.crop_overlap_ratio):
        if crop[0] < crop[2] and crop[1] < crop[3] and len(parameters.grid(layer)):
            yield crop, layer


class Clicks:
    """The clicks on one crop, whose masks pass the filters into ``masks``."""

    def __init__(
        self, image: Any, crop: Box, whole: Size, family: Family, parameters: Parameters, found: Found
    ) -> None:
        self.masks: list[FoundMask] = []
        self._image, self._crop, self._whole = image, crop, whole
        self._family, self._parameters, self._found = family, parameters, found
        self._size = (crop[2] - crop[0], crop[3] - crop[1])
        self._covered = np.zeros(self._size[::-1], np.bool_)

    def kept(self) -> list[FoundMask]:
        """Return the masks that remain of those whose boxes overlap."""
        boxes, scores = [each.box for each in self.masks], [each.score for each in self.masks]
        return [self.masks[index] for index in suppressed(boxes, scores, self._parameters.box_nms_thresh)]

    def chunks(self, points: FloatArray) -> Iterator[FloatArray]:
        """Yield the points (N,2) in pixels of the crop, a few at a time, in the order in which they are tried."""
        for part in _passes(points, self._parameters.adaptive):
            for start in range(0, len(part), _POINTS_PER_REQUEST):
                yield part[start : start + _POINTS_PER_REQUEST]

    def click(self, points: FloatArray) -> Generator[Decode, Any, None]:
        """Click on points (N,2), and put their masks through the filters."""
        if self._parameters.adaptive:
            points = points[[not self._covered[int(y), int(x)] for x, y in points]]
        if not len(points):
            return
        chosen = self._parameters
        self._found.decodes += len(points)
        logits, scores = yield Decode(self._image, points[:, None], None, chosen.multimask_output)
        points = points.repeat(logits.shape[1], axis=0)
        logits, scores = logits.reshape(-1, *logits.shape[2:]), scores.ravel()
        self._found.candidates += len(logits)
        if chosen.use_m2m:
            self._found.decodes += len(points)
            refined, better = yield Decode(self._image, points[:, None], logits[:, None], False)
            logits, scores = refined[:, 0], better.ravel()
        for low, score, point in zip(logits, scores, points, strict=True):
            self._consider(low, float(score), (float(point[0]), float(point[1])))

    def _consider(self, low: FloatArray, score: float, point: tuple[float, float]) -> None:
        """Put a mask through the filters. Scores are compared in FP32, as torch does: 19/20 passes 0.95."""
        chosen = self._parameters
        if chosen.pred_iou_thresh > 0 and not np.float32(score) > np.float32(chosen.pred_iou_thresh):
            self._found.dropped["pred_iou_thresh"] += 1
            return
        logits = full_size_logits(chosen.cleanup.clean_logits(low), self._size, self._family)
        stability = stability_of(logits, chosen.mask_threshold, chosen.stability_score_offset)
        if chosen.stability_score_thresh > 0 and not np.float32(stability) >= np.float32(chosen.stability_score_thresh):
            self._found.dropped["stability_score_thresh"] += 1
            return
        mask = chosen.cleanup.clean_mask(logits > chosen.mask_threshold, [point])
        box = last_pixels(mask)
        if is_cut_off(box, self._crop, self._whole):
            self._found.dropped["the edge of a crop"] += 1
            return
        if np.count_nonzero(mask) <= _LARGEST_COVER * mask.size:
            self._covered |= mask
        bits = np.packbits(mask)
        self.masks.append(FoundMask(bits, score, stability, point, box, self._crop, self._whole))


def _suppress_crops(found: Found, threshold: float) -> None:
    """Drop masks of crops that other masks contain already. Masks of small crops win."""
    scores = [1 / _area(each.crop) for each in found.masks]
    kept = suppressed([each.placed_box for each in found.masks], scores, threshold)
    found.dropped["crop_nms_thresh"] += len(found.masks) - len(kept)
    found.masks = [found.masks[index] for index in kept]


def drop_small_regions(found: Found, parameters: Parameters) -> None:
    """Fill small holes and drop small parts, and then the masks that are doubled by it.

    Reference: SamAutomaticMaskGenerator.postprocess_small_regions. Masks that do not change win.
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
    """Return an object with another mask (H,W) in its crop."""
    left, top, right, bottom = found.crop
    part = mask[top:bottom, left:right]
    return dataclasses.replace(found, bits=np.packbits(part), box=last_pixels(part))


def _passes(points: FloatArray, adaptive: bool) -> Iterator[FloatArray]:
    """Yield the points, or in the adaptive mode the coarse grid first and then the finer ones."""
    side = math.isqrt(len(points))
    if not adaptive or side * side != len(points):
        yield points
        return
    rows, columns = np.divmod(np.arange(len(points)), side)
    done = np.zeros(len(points), np.bool_)
    for stride in _STRIDES:
        chosen = (rows % stride == stride // 2) & (columns % stride == stride // 2) & ~done
        done |= chosen
        yield points[chosen]


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])
