"""The figures: IoU, number of clicks, rank correlation, and their summary over many objects."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._common.extras import missing
from ..errors import InputError
from .clicks import Click

try:
    from scipy import stats
except ImportError as error:
    raise missing("the figures need", "evaluate", error) from error

TARGETS = (0.85, 0.90)
"""IoU that the number of clicks is counted to: NoC85 and NoC90."""


@dataclass(frozen=True)
class Answer:
    """One mask of the model: its true IoU, and the IoU that the model predicted."""

    iou: float
    score: float


@dataclass(frozen=True)
class ObjectResult:
    """What was measured on one object.

    Args:
        image: name of the picture.
        label: number of the object in the picture's label mask.
        area: pixels of the object.
        prompts: the clicks; fewer than ``clicks`` when a mask without any error was reached before.
        clicks: the answer after 1, 2, ... clicks.
        candidates: the three candidates after one click.
        box: the answer to the tight box.
        shaken_box: the answer to a box drawn in haste; None when not asked for.
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
    """Clicks to reach an IoU.

    Args:
        iou: the IoU to reach.
        clicks: mean number of clicks; an object that never gets there counts with the most clicks allowed.
        reached: share of objects that got there, 0..1.
    """

    iou: float
    clicks: float
    reached: float


@dataclass(frozen=True)
class Summary:
    """Figures over all objects of a data set; every IoU is a mean, 0..1.

    Args:
        images: pictures with at least one object.
        objects: objects measured.
        clicks: IoU after 1, 2, ... clicks.
        quartiles: (25 %, 75 %) of the objects' IoU after 1, 2, ... clicks.
        best_by_truth: one click, the best of the three candidates by the truth (an oracle's choice).
        best_by_score: one click, the candidate that the model itself scores highest.
        box: the tight box.
        shaken_box: the box drawn in haste; None when not asked for.
        targets: clicks to 85 and 90 %.
        spearman: rank correlation of predicted and true IoU by kind of answer: "click" (single mask of one click),
            "candidates" (all three of one click), "box", and "all" (these and the later clicks); None where undefined.
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


def clicks_to(target: float, ious: Sequence[float]) -> int | None:
    """Return after how many clicks ``ious`` (after 1, 2, ... clicks) first reaches the target; None: never."""
    return next((number for number, iou in enumerate(ious, start=1) if iou >= target), None)


def spearman(answers: Sequence[Answer]) -> float | None:
    """Return Spearman's rank correlation of predicted and true IoU, -1..1; equal values share their mean rank.

    None when it is undefined: fewer than two answers, or all predicted or all true IoUs equal.
    """
    if len(answers) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)  # told by the None
        correlation = float(stats.spearmanr([a.score for a in answers], [a.iou for a in answers]).statistic)
    return None if np.isnan(correlation) else correlation


def summarize(objects: Sequence[ObjectResult]) -> Summary:
    """Reduce the results of all objects to their figures.

    Raises:
        InputError: no objects, or they were not all measured with the same number of clicks.
    """
    if not objects or len({len(each.clicks) for each in objects}) > 1:
        raise InputError("a summary needs at least one object, and as many clicks for each")
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
    counts = [clicks_to(target, each) for each in ious]
    most = len(ious[0])
    return Target(
        iou=target,
        clicks=_mean([most if count is None else count for count in counts]),
        reached=_mean([count is not None for count in counts]),
    )


def _correlations(objects: Sequence[ObjectResult]) -> dict[str, float | None]:
    later = [answer for each in objects for answer in each.clicks[1 : len(each.prompts)]]  # not the kept ones
    shaken = [each.shaken_box for each in objects if each.shaken_box is not None]
    kinds = {
        "click": [each.clicks[0] for each in objects],
        "candidates": [answer for each in objects for answer in each.candidates],
        "box": [each.box for each in objects],
    }
    pooled = [*(answer for answers in kinds.values() for answer in answers), *later, *shaken]
    return {kind: spearman(answers) for kind, answers in {**kinds, "all": pooled}.items()}
