"""The metrics of masks and of tracked objects, and their summaries over all objects of a data set.

Masks: IoU, number of clicks, rank correlation. Tracked objects: region similarity J, contour accuracy F, and their mean
J&F, as defined by Perazzi et al., "A Benchmark Dataset and Evaluation Methodology for Video Object Segmentation", CVPR
2016, and Pont-Tuset et al., "The 2017 DAVIS Challenge on Video Object Segmentation": J is the IoU, F the harmonic mean
of the precision and the recall of the contour pixels. A pixel counts as found if the other contour is at most 0.8 % of
the image's diagonal away, rounded up, as in the toolkit of the data set.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._common.extras import missing
from ..errors import InputError
from ..masks.rle import BoolArray
from .clicks import Click

try:
    from scipy import ndimage, stats
except ImportError as error:
    raise missing("the metrics need", "evaluate", error) from error

TARGETS = (0.85, 0.90)
"""The IoU thresholds of NoC85 and NoC90, the number of clicks until the IoU reaches the threshold."""


@dataclass(frozen=True)
class Answer:
    """The predicted score of one mask, and its IoU with the ground truth, 0..1."""

    iou: float
    score: float


@dataclass(frozen=True)
class ObjectResult:
    """The measurements of one object.

    Args:
        prompts: the simulated clicks, fewer than ``clicks`` if a mask became perfect earlier.
        clicks: the answer after 1, 2, ... clicks. After a perfect mask, its answer is repeated.
        shaken_box: the answer to the inaccurate box; None if it was not measured.
    """

    image: str
    label: int
    area: int
    prompts: tuple[Click, ...]
    clicks: tuple[Answer, ...]
    candidates: tuple[Answer, ...]
    box: Answer
    shaken_box: Answer | None = None


@dataclass(frozen=True)
class Target:
    """The number of clicks (NoC) until objects reach an IoU threshold.

    Args:
        clicks: mean number of clicks. An object that never reaches the threshold counts as the maximum.
        reached: share of objects that reach the threshold, 0..1.
    """

    iou: float
    clicks: float
    reached: float


@dataclass(frozen=True)
class Summary:
    """The metrics over all objects of a data set. Every IoU is a mean over the objects, 0..1.

    Args:
        clicks: IoU after 1, 2, ... clicks.
        quartiles: 25 % and 75 % quantile of the objects' IoU after 1, 2, ... clicks.
        best_by_truth: IoU after one click of the candidate with the highest true IoU (chosen by an oracle).
        shaken_box: IoU for the inaccurate box; None if it was not measured.
        targets: number of clicks to an IoU of 85 % and of 90 %.
        spearman: rank correlation of predicted and true IoU for each kind of answer: "click" (single mask after one
            click), "candidates" (three masks after one click), "box", and "all" (all answers, later clicks included).
            None if the correlation is undefined.
    """

    images: int
    objects: int
    clicks: tuple[float, ...]
    quartiles: tuple[tuple[float, float], ...]
    best_by_truth: float
    best_by_score: float
    box: float
    shaken_box: float | None
    targets: tuple[Target, ...]
    spearman: dict[str, float | None]


def spearman(answers: Sequence[Answer]) -> float | None:
    """Return Spearman's rank correlation of predicted and true IoU, -1..1. Equal values share their mean rank.

    Returns None if the correlation is undefined: for fewer than two answers, or if all predicted IoUs or all true IoUs
    are equal.
    """
    if len(answers) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)  # reported as None
        correlation = float(stats.spearmanr([a.score for a in answers], [a.iou for a in answers]).statistic)
    return None if np.isnan(correlation) else correlation


def summarize(objects: Sequence[ObjectResult]) -> Summary:
    """Compute the metrics of a data set from the results of all its objects."""
    if not objects or len({len(each.clicks) for each in objects}) > 1:
        raise InputError("a summary needs at least one object, and the same number of clicks for each object")
    ious = np.array([[answer.iou for answer in each.clicks] for each in objects])
    low, high = np.quantile(ious, (0.25, 0.75), axis=0)
    shaken = [each.shaken_box.iou for each in objects if each.shaken_box is not None]
    return Summary(
        images=len({each.image for each in objects}),
        objects=len(objects),
        clicks=tuple(map(float, ious.mean(axis=0))),
        quartiles=tuple(zip(map(float, low), map(float, high), strict=True)),
        best_by_truth=_mean([max(answer.iou for answer in each.candidates) for each in objects]),
        best_by_score=_mean([max(each.candidates, key=lambda answer: answer.score).iou for each in objects]),
        box=_mean([each.box.iou for each in objects]),
        shaken_box=_mean(shaken) if shaken else None,
        targets=tuple(_target(target, ious.tolist()) for target in TARGETS),
        spearman=_correlations(objects),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _target(target: float, ious: Sequence[Sequence[float]]) -> Target:
    counts = [next((number for number, iou in enumerate(each, start=1) if iou >= target), None) for each in ious]
    max_clicks = len(ious[0])
    return Target(
        iou=target,
        clicks=_mean([max_clicks if count is None else count for count in counts]),
        reached=_mean([count is not None for count in counts]),
    )


def _correlations(objects: Sequence[ObjectResult]) -> dict[str, float | None]:
    # Repeated answers after a perfect mask must not count several times.
    later = [answer for each in objects for answer in each.clicks[1 : len(each.prompts)]]
    shaken = [each.shaken_box for each in objects if each.shaken_box is not None]
    kinds = {
        "click": [each.clicks[0] for each in objects],
        "candidates": [answer for each in objects for answer in each.candidates],
        "box": [each.box for each in objects],
    }
    pooled = [*(answer for answers in kinds.values() for answer in answers), *later, *shaken]
    return {kind: spearman(answers) for kind, answers in {**kinds, "all": pooled}.items()}


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
        return (self.j + self.f) / 2


def contour_accuracy(mask: BoolArray, truth: BoolArray) -> float:
    """Return F, the F-measure of the contours of two bool masks (H,W), 0..1.

    F is 1 if neither mask has a contour, and 0 if exactly one has a contour.
    """
    if mask.shape != truth.shape:
        raise InputError(f"cannot compare a mask of {mask.shape} with one of {truth.shape} rows and columns")
    pixels = math.ceil(BOUND * math.hypot(*mask.shape))
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

    def share(values: Sequence[float]) -> float:
        return float(np.mean(np.asarray(values) > _RECALL_AT))

    return TrackSummary(
        objects=len(results),
        frames=sum(len(each.frames) for each in results),
        j=_mean([_mean(each.j) for each in results]),
        f=_mean([_mean(each.f) for each in results]),
        j_recall=_mean([share(each.j) for each in results]),
        f_recall=_mean([share(each.f) for each in results]),
    )
