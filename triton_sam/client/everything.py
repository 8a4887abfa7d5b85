"""Segments all objects of an image by a grid of clicks, with the filters of the official mask generators.

Every step follows automatic_mask_generator.py and utils/amg.py of the packages segment_anything and sam2, so that the
masks equal theirs. A click is a request like any other: this works with every server.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigurationError
from ..families.base import FloatArray, Size
from ..inputs.images import ImageSource, open_image
from ..masks.resize import full_size_logits
from ..masks.rle import BoolArray
from ..masks.segment import Segment, mask_to_box

if TYPE_CHECKING:
    from .sync import SamTritonClient

Box = tuple[int, int, int, int]
"""x1, y1, x2, y2 in pixels of the image."""
Progress = Callable[[int, int], None]
"""Is told the number of points that are done, and of all points."""

_EDGE = 20
"""Pixels between a box and the edge of its crop within which the mask counts as cut off."""
_POINTS_PER_REQUEST = 8
_STRIDES = (4, 2, 1)
"""The adaptive mode tries every fourth point in both directions first, then every second, then all others."""
_LARGEST_COVER = 0.2
"""In the adaptive mode, a mask with a larger share of its crop hides no points: it may be a background with objects."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of the official generators, with the defaults of SAM2. SamAutomaticMaskGenerator explains them."""

    points_per_side: int | None = 32
    pred_iou_thresh: float = 0.8
    stability_score_thresh: float = 0.95
    stability_score_offset: float = 1.0
    mask_threshold: float = 0.0
    box_nms_thresh: float = 0.7
    crop_n_layers: int = 0
    crop_nms_thresh: float = 0.7
    crop_overlap_ratio: float = 512 / 1500
    crop_n_points_downscale_factor: int = 1
    point_grids: Sequence[npt.NDArray[Any]] | None = None
    use_m2m: bool = False
    multimask_output: bool = True
    adaptive: bool = False

    def __post_init__(self) -> None:
        if (self.points_per_side is None) == (self.point_grids is None):
            raise ConfigurationError("give exactly one of points_per_side and point_grids")
        if self.points_per_side is not None and not 1 <= self.points_per_side <= 256:
            raise ConfigurationError(f"points_per_side must be within 1..256, not {self.points_per_side}")
        if not 0 <= self.crop_n_layers <= 3 or self.crop_n_points_downscale_factor < 1:
            raise ConfigurationError("crop_n_layers must be within 0..3, crop_n_points_downscale_factor at least 1")
        if not 0 <= self.crop_overlap_ratio < 1:
            raise ConfigurationError(f"crop_overlap_ratio must be within 0..1, not {self.crop_overlap_ratio}")
        if self.point_grids is not None and len(self.point_grids) <= self.crop_n_layers:
            raise ConfigurationError(f"{self.crop_n_layers} layers of crops need {self.crop_n_layers + 1} point_grids")

    def grid(self, layer: int) -> FloatArray:
        """Return the points (N,2) of a layer, x and y in 0..1, row by row."""
        if self.point_grids is not None:
            return np.asarray(self.point_grids[layer], np.float64).reshape(-1, 2)
        count = int((self.points_per_side or 0) / self.crop_n_points_downscale_factor**layer)
        if count == 0:
            return np.zeros((0, 2))
        places = np.linspace(1 / (2 * count), 1 - 1 / (2 * count), count)
        return np.stack(np.meshgrid(places, places), axis=-1).reshape(-1, 2)


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


@dataclass
class Found:
    """All objects of an image, and how they were found.

    Args:
        objects: the objects, in the order of the official generators.
        decodes: number of points that were decoded.
        candidates: number of masks before the filters.
        dropped: number of masks that each filter dropped, by the name of its parameter.
    """

    objects: list[FoundObject] = field(default_factory=list)
    decodes: int = 0
    candidates: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def reason(self) -> str:
        """A sentence that says which filters dropped how many masks."""
        if not self.candidates:
            return "There were no points: give a higher points_per_side."
        parts = [f"{name} dropped {count}" for name, count in self.dropped.items() if count]
        return f"Of {self.candidates} masks, {', '.join(parts) or 'no filter dropped any'}: try lower thresholds."


def find_everything(
    client: SamTritonClient, image: ImageSource, parameters: Parameters, progress: Progress | None = None
) -> Found:
    """Segment all objects of an image.

    Args:
        client: a client of a family that takes points.
        image: the image in any form that the client accepts.
        parameters: the grid and the filters.
        progress: is called after each request. An exception that it raises ends the work.

    Raises:
        ImageError: the image cannot be used.
        ServerError: see triton_sam.errors.
    """
    opened = open_image(image)
    crops = list(crop_boxes(opened.size, parameters.crop_n_layers, parameters.crop_overlap_ratio))
    total = sum(len(parameters.grid(layer)) for _, layer in crops)
    found, done = Found(), 0
    for crop, layer in crops:
        part = opened if len(crops) == 1 else opened.crop(crop)
        points = parameters.grid(layer) * np.array(part.size)
        clicks = _Clicks(client, client.encode(part), part.size, crop, opened.size, parameters, found)
        for tried in clicks.run(points):
            done += tried
            if progress is not None:
                progress(done, total)
        kept = suppressed(
            [each.box for each in clicks.objects], [each.score for each in clicks.objects], parameters.box_nms_thresh
        )
        found.dropped["box_nms_thresh"] += len(clicks.objects) - len(kept)
        found.objects += [clicks.objects[index].placed(crop, opened.size) for index in kept]
    if len(crops) > 1:
        scores = [1 / _area(each.crop_box) for each in found.objects]  # masks of small crops win
        kept = suppressed([_last_pixels(each) for each in found.objects], scores, parameters.crop_nms_thresh)
        found.dropped["crop_nms_thresh"] += len(found.objects) - len(kept)
        found.objects = [found.objects[index] for index in kept]
    return found


@dataclass(frozen=True)
class _Candidate:
    mask: BoolArray
    score: float
    stability: float
    point: tuple[float, float]
    box: Box

    def placed(self, crop: Box, size: Size) -> FoundObject:
        mask = np.zeros(size[::-1], np.bool_)
        mask[crop[1] : crop[3], crop[0] : crop[2]] = self.mask
        point = (self.point[0] + crop[0], self.point[1] + crop[1])
        return FoundObject(mask, self.score, None, 0, 0, self.stability, point, crop)


class _Clicks:
    """The clicks on one crop, whose masks pass the filters into ``objects``."""

    def __init__(
        self,
        client: SamTritonClient,
        image: Any,
        size: Size,
        crop: Box,
        whole: Size,
        parameters: Parameters,
        found: Found,
    ) -> None:
        self.objects: list[_Candidate] = []
        self._client, self._image, self._size = client, image, size
        self._crop, self._whole, self._parameters, self._found = crop, whole, parameters, found
        self._covered = np.zeros(size[::-1], np.bool_)

    def run(self, points: FloatArray) -> Iterator[int]:
        """Click on the points (N,2) in pixels of the crop; yield how many points are done since the last time."""
        for part in _passes(points, self._parameters.adaptive):
            for start in range(0, len(part), _POINTS_PER_REQUEST):
                chunk = part[start : start + _POINTS_PER_REQUEST]
                open_points = chunk[[not self._is_covered(point) for point in chunk]]
                if len(open_points):
                    self._click(open_points)
                yield len(chunk)

    def _is_covered(self, point: FloatArray) -> bool:
        return self._parameters.adaptive and bool(self._covered[int(point[1]), int(point[0])])

    def _click(self, points: FloatArray) -> None:
        logits, scores = self._predict(points, None, self._parameters.multimask_output)
        candidates = logits.shape[1]
        logits, scores, points = (
            logits.reshape(-1, *logits.shape[2:]),
            scores.ravel(),
            points.repeat(candidates, axis=0),
        )
        self._found.candidates += len(logits)
        self._found.decodes += len(points) // candidates
        if self._parameters.use_m2m:
            refined, better = self._predict(points, logits[:, None], False)
            logits, scores = refined[:, 0], better.ravel()
            self._found.decodes += len(points)
        for low, score, point in zip(logits, scores, points, strict=True):
            self._consider(low, float(score), (float(point[0]), float(point[1])))

    def _predict(self, points: FloatArray, masks: FloatArray | None, multimask: bool) -> tuple[FloatArray, FloatArray]:
        labels = np.ones((len(points), 1), np.int32)
        return self._client.predict(
            points[:, None], labels, mask_input=masks, multimask_output=multimask, image=self._image
        )

    def _consider(self, low: FloatArray, score: float, point: tuple[float, float]) -> None:
        """Put a mask through the filters."""
        chosen = self._parameters
        if chosen.pred_iou_thresh > 0 and not score > chosen.pred_iou_thresh:
            self._found.dropped["pred_iou_thresh"] += 1
            return
        logits = full_size_logits(low, self._size, self._client.family)
        stability = stability_of(logits, chosen.mask_threshold, chosen.stability_score_offset)
        if chosen.stability_score_thresh > 0 and not stability >= chosen.stability_score_thresh:
            self._found.dropped["stability_score_thresh"] += 1
            return
        mask = logits > chosen.mask_threshold
        box = last_pixels(mask)
        if is_cut_off(box, self._crop, self._whole):
            self._found.dropped["the edge of a crop"] += 1
            return
        if np.count_nonzero(mask) <= _LARGEST_COVER * mask.size:
            self._covered |= mask
        self.objects.append(_Candidate(mask, score, stability, point, box))


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


def stability_of(logits: FloatArray, threshold: float, offset: float) -> float:
    """Return the IoU of the masks at two thresholds, 0..1; NaN if both are empty.

    Reference: calculate_stability_score.
    """
    inner, outer = (np.count_nonzero(logits > threshold + sign * offset) for sign in (1, -1))
    return float(np.float32(inner) / np.float32(outer)) if outer else math.nan


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


def suppressed(boxes: Sequence[Box], scores: Sequence[float], threshold: float) -> list[int]:
    """Return the boxes that non-maximum suppression keeps, the highest score first: torchvision.ops.nms in FP32."""
    corners = np.array(boxes, np.float32).reshape(-1, 4)
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    order = np.argsort(-np.array(scores, np.float32), kind="stable")
    kept: list[int] = []
    while order.size:
        first, order = int(order[0]), order[1:]
        kept.append(first)
        low = np.maximum(corners[first, :2], corners[order, :2])
        high = np.minimum(corners[first, 2:], corners[order, 2:])
        common = np.prod(np.maximum(high - low, 0), axis=1)
        with np.errstate(invalid="ignore"):
            overlap = common / (areas[first] + areas[order] - common)
        order = order[~(overlap > threshold)]
    return kept


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


def _last_pixels(segment: FoundObject) -> Box:
    return last_pixels(segment.mask)


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])
