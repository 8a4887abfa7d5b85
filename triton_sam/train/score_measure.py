"""Measures of the head of the score, from answers that it did not learn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .score import BOX, CLICK, TRACKED, Answers


@dataclass(frozen=True)
class Quality:
    """The use of a head's scores. NaN where there are no such answers.

    Attributes:
        candidates: Spearman's rank correlation of score and IoU of the three candidates of a click, -1..1.
        box: the same for the single mask of a box.
        tracked: the same for the three candidates of tracked objects.
        single: mean IoU of the single mask of a click, 0..1; it does not depend on the head.
        by_score: mean IoU of the candidate of a click (or of a tracked object) with the highest score.
        by_truth: mean IoU of the best candidate of a click (or of a tracked object).
        error: mean distance of score and IoU, over all masks.
    """

    candidates: float
    box: float
    tracked: float
    single: float
    by_score: float
    by_truth: float
    error: float


def measure(head: nn.Module, answers: Answers) -> Quality:
    """Measure a head on answers that it should not have learned from."""
    with torch.no_grad():
        scores = head(answers.tokens)
    click, box, tracked = (answers.kinds == kind for kind in (CLICK, BOX, TRACKED))
    chosen = click | tracked
    candidates = answers.iou[chosen, 1:]
    known = ~answers.iou.isnan()
    return Quality(
        candidates=spearman(scores[click, 1:], answers.iou[click, 1:]),
        box=spearman(scores[box, 0], answers.iou[box, 0]),
        tracked=spearman(scores[tracked, 1:], answers.iou[tracked, 1:]),
        single=float(answers.iou[click, 0].mean()),
        by_score=float(candidates.gather(1, scores[chosen, 1:].argmax(1, keepdim=True)).mean()),
        by_truth=float(candidates.amax(1).mean()) if len(candidates) else float("nan"),
        error=float((scores - answers.iou)[known].abs().mean()),
    )


def spearman(scores: Tensor, iou: Tensor) -> float:
    """Return the rank correlation of two tensors of one shape; NaN if the values of one are all equal."""
    ranks = torch.stack([_ranks(scores.flatten()), _ranks(iou.flatten())])
    return float(torch.corrcoef(ranks)[0, 1]) if ranks.shape[1] > 1 else float("nan")


def _ranks(values: Tensor) -> Tensor:
    """Return twice the rank of each value (N,); equal values share their mean rank."""
    ordered = values.contiguous().sort().values
    return (torch.searchsorted(ordered, values) + torch.searchsorted(ordered, values, right=True)).double()
