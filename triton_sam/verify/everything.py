"""Compare automatic masks with the official mask generators: same weights, same image, same parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..client.mask_generator import generator_of
from ..client.sync import SamTritonClient
from ..errors import InputError
from ..export.reference import GenerateMasks, Record
from ..masks.boxes import share_matched

RgbImage = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Limits:
    """Thresholds that a comparison must meet.

    Args:
        iou: smallest IoU of a mask and its counterpart.
        share: smallest share of masks with a counterpart, in both directions.
    """

    iou: float = 0.95
    share: float = 0.99

    def __str__(self) -> str:
        return f"{self.share:.0%} of masks matched at IoU >= {self.iou:g}, both ways"


LIMITS = Limits()


def by_client(client: SamTritonClient) -> GenerateMasks:
    """Return the class with the official name around a client, as a function."""
    return lambda image, **parameters: generator_of(client, **parameters).generate(image)


@dataclass(frozen=True)
class EverythingRow:
    """One case, answered by one runner and by the official generator.

    Args:
        found: share of the official masks that the runner also has, 0..1.
        right: share of the runner's masks that the official generator also has, 0..1.
    """

    runner: str
    case: str
    masks: int
    official: int
    found: float
    right: float

    HEAD: ClassVar[tuple[str, ...]] = ("runner", "case", "masks", "official", "found", "right")

    def cells(self) -> tuple[str, ...]:
        counts = str(self.masks), str(self.official)
        return (self.runner, self.case, *counts, f"{self.found:.2%}", f"{self.right:.2%}")

    def passes(self, limits: Limits) -> bool:
        """Return whether the masks meet the limits, in both directions."""
        return self.found >= limits.share and self.right >= limits.share


def cases(reference: GenerateMasks, image: RgbImage, points_per_side: int) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of the cases by title.

    With weights that give low scores, few or no masks pass the default thresholds, and equal answers without masks
    prove nothing. So there are second thresholds, which about a quarter of the candidates of a small grid pass.
    """
    grid = {"points_per_side": points_per_side}
    crops = {"crop_n_layers": 1, "crop_n_points_downscale_factor": 2}
    fitting = fitting_thresholds(reference, image)
    return {
        "default parameters": grid,
        "one crop layer": {**grid, **crops},
        "fitting thresholds": {**grid, **fitting},
        "fitting thresholds, one crop layer": {**grid, **crops, **fitting},
    }


def fitting_thresholds(reference: GenerateMasks, image: RgbImage) -> dict[str, float]:
    """Return thresholds of predicted IoU and stability. Half of the candidates of a small grid pass each of them."""
    none = {"pred_iou_thresh": 0.0, "stability_score_thresh": 0.0, "box_nms_thresh": 1.0}  # 0 turns a filter off
    found = reference(image, points_per_side=8, **none)
    return {
        # Random weights may predict less than 0.
        "pred_iou_thresh": max(0.0, _middle([record["predicted_iou"] for record in found])),
        "stability_score_thresh": _middle([record["stability_score"] for record in found]),
    }


def verify_everything(
    reference: GenerateMasks, runners: Mapping[str, GenerateMasks], image: RgbImage, points_per_side: int
) -> Iterator[EverythingRow]:
    """Compare runners with the official generator.

    Yields:
        One row for each case and runner.

    Raises:
        InputError: the official generator finds nothing in any case, so that nothing was compared.
    """
    compared = 0
    for title, parameters in cases(reference, image, points_per_side).items():
        expected = _masks(reference(image, **parameters))
        compared += len(expected)
        for name, runner in runners.items():
            yield _compare(name, title, _masks(runner(image, **parameters)), expected)
    if not compared:
        raise InputError("the official generator finds nothing in this image: give another one as --image")


def _masks(records: Sequence[Record]) -> list[npt.NDArray[np.bool_]]:
    return [record["segmentation"] for record in records]


def _compare(
    name: str, title: str, found: Sequence[npt.NDArray[np.bool_]], expected: Sequence[npt.NDArray[np.bool_]]
) -> EverythingRow:
    return EverythingRow(
        name,
        title,
        masks=len(found),
        official=len(expected),
        found=share_matched(expected, found, LIMITS.iou),
        right=share_matched(found, expected, LIMITS.iou),
    )


def _middle(scores: Sequence[float]) -> float:
    """Return a number in the middle of the scores, between two of them, so that rounding does not matter."""
    ordered = sorted(set(scores))
    half = len(ordered) // 2
    return (ordered[half - 1] + ordered[half]) / 2 if half else max(ordered, default=0.0)
