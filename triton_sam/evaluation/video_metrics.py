"""The metrics of tracked objects: region similarity J, contour accuracy F, and their mean J&F.

Definitions: Perazzi et al., "A Benchmark Dataset and Evaluation Methodology for Video Object Segmentation", CVPR 2016,
and Pont-Tuset et al., "The 2017 DAVIS Challenge on Video Object Segmentation": J is the IoU, F the harmonic mean of the
precision and the recall of the contour pixels. A pixel counts as found if the other contour is at most 0.8 % of the
image's diagonal away, rounded up, as in the toolkit of the data set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._common.extras import missing
from ..errors import InputError
from ..masks.rle import BoolArray

try:
    from scipy import ndimage
except ImportError as error:
    raise missing("the metrics need", "evaluate", error) from error

BOUND = 0.008
"""Maximum distance of matching contours, as a share of the image's diagonal."""
_RECALL_AT = 0.5  # the toolkit's recall: the share of frames above this value


@dataclass(frozen=True)
class TrackResult:
    """The measurements of one object in one video.

    Args:
        j: the IoU of each measured frame, 0..1.
        f: the contour accuracy of each measured frame, 0..1.
    """

    video: str
    object_id: int
    frames: tuple[int, ...]
    j: tuple[float, ...]
    f: tuple[float, ...]


@dataclass(frozen=True)
class TrackSummary:
    """The means over objects. As in the toolkit of DAVIS, each object counts once, regardless of its video's length.

    Args:
        j_recall: share of frames with J above 0.5, 0..1.
        f_recall: share of frames with F above 0.5, 0..1.
    """

    objects: int
    frames: int
    j: float
    f: float
    j_recall: float
    f_recall: float

    @property
    def j_and_f(self) -> float:
        """The mean of J and F."""
        return (self.j + self.f) / 2


def contour_accuracy(mask: BoolArray, truth: BoolArray, bound: float = BOUND) -> float:
    """Return F, the F-measure of the contours of two bool masks (H,W), 0..1.

    F is 1 if neither mask has a contour, and 0 if exactly one has a contour.
    """
    if mask.shape != truth.shape:
        raise InputError(f"cannot compare a mask of {mask.shape} with one of {truth.shape} rows and columns")
    pixels = bound if bound >= 1 else math.ceil(bound * math.hypot(*mask.shape))
    found, wanted = contour(mask), contour(truth)
    if not found.any() and not wanted.any():
        return 1.0
    if not found.any() or not wanted.any():
        return 0.0
    precision = float((found & _near(wanted, pixels)).sum() / found.sum())
    recall = float((wanted & _near(found, pixels)).sum() / wanted.sum())
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def contour(mask: BoolArray) -> BoolArray:
    """Return the contour of a mask, bool (H,W): pixels unlike their right, lower or lower right neighbour.

    Contours are one pixel wide. The last column has no right neighbour, the last row no lower neighbour.
    """
    edges = np.zeros_like(mask)
    edges[:, :-1] |= mask[:, :-1] != mask[:, 1:]
    edges[:-1] |= mask[:-1] != mask[1:]
    edges[:-1, :-1] |= mask[:-1, :-1] != mask[1:, 1:]
    return edges


def _near(pixels: BoolArray, distance: float) -> BoolArray:
    """Return the pixels within a Euclidean distance of the given pixels: a dilation by a disc."""
    return np.asarray(ndimage.distance_transform_edt(~pixels) <= distance)


def summarize_tracks(results: Sequence[TrackResult]) -> TrackSummary:
    """Return the means over objects."""
    if not results or any(not each.frames for each in results):
        raise InputError("a summary needs at least one object, and at least one frame for each object")

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    def share(values: Sequence[float]) -> float:
        return float(np.mean(np.asarray(values) > _RECALL_AT))

    return TrackSummary(
        objects=len(results),
        frames=sum(len(each.frames) for each in results),
        j=mean([mean(each.j) for each in results]),
        f=mean([mean(each.f) for each in results]),
        j_recall=mean([share(each.j) for each in results]),
        f_recall=mean([share(each.f) for each in results]),
    )
