"""Measure a data set with simulated clicks and boxes, and show the results as a plain-text table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..client.sync import SamTritonClient
from ..errors import ConfigurationError, InputError
from ..masks.boxes import intersection_over_union
from ..masks.rle import BoolArray
from ..masks.segment import Segment
from .clicks import Click, first_click, next_click, shaken_box, tight_box
from .datasets import Dataset, Sample
from .metrics import Answer, ObjectResult, Summary, summarize

MAX_CLICKS = 8
_MAX_BATCH = 16  # objects per request, to keep a response below a few megabytes
_BATCH_PIXELS = 32_000_000  # full-size mask pixels per request, to limit the memory for large images
_FIRST_COLUMN = 34  # characters of the table


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of a measurement.

    Args:
        clicks: maximum number of clicks on one object, 1..8.
        feed_mask: True sends the logits of the last mask with the next clicks, as in the training of SAM. False sends
            only clicks.
        box_jitter: standard deviation of the sides of an inaccurate box, as a share of the box, 0..0.5; see
            clicks.shaken_box. 0 measures only tight boxes.
        most_objects: maximum number of objects per image; of more objects, a random subset is measured.
        seed: seed of this subset and of the inaccurate boxes. At least 0.
    """

    clicks: int = MAX_CLICKS
    feed_mask: bool = True
    box_jitter: float = 0.0
    most_objects: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.clicks <= MAX_CLICKS:
            raise ConfigurationError(f"the number of clicks must be within 1..{MAX_CLICKS}, not {self.clicks}")
        if not 0 <= self.box_jitter <= 0.5:
            raise ConfigurationError(f"the jitter of boxes must be within 0..0.5, not {self.box_jitter:g}")
        if self.most_objects < 1 or self.seed < 0:
            raise ConfigurationError("the number of objects must be at least 1 and the seed at least 0")


@dataclass(eq=False)
class Trial:
    """One object during its measurement, with the masks for drawing examples.

    Args:
        truth: bool (H,W), the ground-truth mask of the object.
        click_answers: the answer after 1, 2, ... clicks so far.
        segments: the segments after the first click ("first") and the last click ("last"), for the tight box ("box")
            and for the inaccurate box ("shaken_box").
    """

    sample: Sample
    label: int
    truth: BoolArray
    clicks: list[Click] = field(default_factory=list)
    click_answers: list[Answer] = field(default_factory=list)
    candidates: list[Answer] = field(default_factory=list)
    segments: dict[str, Segment] = field(default_factory=dict)

    def click(self) -> bool:
        """Add the next click. Return False if the mask has no error to correct."""
        last = self.segments.get("last")
        click = first_click(self.truth) if last is None else next_click(self.truth, last.mask, self.clicks)
        if click is not None:
            self.clicks.append(click)
        return click is not None

    def compare(self, segment: Segment) -> Answer:
        return Answer(intersection_over_union(segment.mask, self.truth), segment.score)

    def record(self, segment: Segment) -> None:
        self.segments.setdefault("first", segment)
        self.segments["last"] = segment
        self.click_answers.append(self.compare(segment))

    def result(self) -> ObjectResult:
        shaken = self.segments.get("shaken_box")
        return ObjectResult(
            image=self.sample.name,
            label=self.label,
            area=int(np.count_nonzero(self.truth)),
            prompts=tuple(self.clicks),
            clicks=tuple(self.click_answers),
            candidates=tuple(self.candidates),
            box=self.compare(self.segments["box"]),
            shaken_box=None if shaken is None else self.compare(shaken),
        )


def measure(
    client: SamTritonClient, dataset: Dataset, settings: EvaluationSettings
) -> Iterator[tuple[int, list[Trial]]]:
    """Measure a data set in batches of objects, so that a caller can stop early and keep the results so far.

    Yields:
        (number of finished images, finished trials).
    """
    found_objects = False
    for number, sample in enumerate(dataset):
        if sample.labels.shape != (sample.image.height, sample.image.width):
            raise InputError(f"{sample.name}: the label mask and the image differ in size")
        rng = np.random.default_rng([settings.seed, number])
        objects = _objects(sample, settings.most_objects, rng)
        if objects:
            found_objects = True
            client.set_image(sample.image)
        batch_size = min(max(_BATCH_PIXELS // sample.labels.size, 1), _MAX_BATCH)
        for start in range(0, len(objects), batch_size):
            batch = [Trial(sample, label, sample.labels == label) for label in objects[start : start + batch_size]]
            _measure_boxes(client, batch, settings.box_jitter, rng)
            _measure_clicks(client, batch, settings)
            yield number + (start + batch_size >= len(objects)), batch
    if not found_objects:
        raise InputError(f"{dataset.name} contains no objects: its label masks are 0 everywhere")


def _objects(sample: Sample, max_count: int, rng: np.random.Generator) -> list[int]:
    """Return the numbers of the objects to measure: all of them, or a random subset of ``max_count``."""
    numbers = [int(number) for number in np.unique(sample.labels) if number != 0]
    if len(numbers) > max_count:
        numbers = sorted(int(number) for number in rng.permutation(numbers)[:max_count])
    return numbers


def _measure_boxes(client: SamTritonClient, trials: Sequence[Trial], jitter: float, rng: np.random.Generator) -> None:
    boxes = {"box": [tight_box(trial.truth) for trial in trials]}
    if jitter > 0:
        boxes["shaken_box"] = [shaken_box(trial.truth, jitter, rng) for trial in trials]
    for kind, drawn in boxes.items():
        for trial, segment in zip(trials, client.segment(box=np.stack(drawn)), strict=True):
            trial.segments[kind] = segment


def _measure_clicks(client: SamTritonClient, trials: Sequence[Trial], settings: EvaluationSettings) -> None:
    """Measure the trials in rounds of one click each. A trial with a perfect mask repeats its last answer."""
    open_trials = list(trials)
    for number in range(settings.clicks):
        open_trials = [trial for trial in open_trials if trial.click()]
        if open_trials:
            _measure_round(client, open_trials, settings.feed_mask and number > 0)
            if number == 0:
                _measure_candidates(client, open_trials)
        for trial in trials:
            if len(trial.click_answers) == number:
                trial.click_answers.append(trial.click_answers[-1])


def _measure_round(client: SamTritonClient, trials: Sequence[Trial], feed_mask: bool) -> None:
    coords, labels = _points(trials)
    previous = [trial.segments["last"].logits for trial in trials] if feed_mask else []
    logits = np.stack([item for item in previous if item is not None])[:, None] if feed_mask else None
    for trial, segment in zip(trials, client.segment(coords, labels, mask_input=logits, logits=True), strict=True):
        trial.record(segment)


def _measure_candidates(client: SamTritonClient, trials: Sequence[Trial]) -> None:
    coords, labels = _points(trials)
    for segment in client.segment(coords, labels, multimask_output=True):
        trial = trials[segment.object_index]
        trial.candidates.append(trial.compare(segment))


def _points(trials: Sequence[Trial]) -> tuple[Any, Any]:
    """Return coords float32 (P,N,2) and labels (P,N). All trials of a round have the same number N of clicks."""
    coords = np.array([[(click.x, click.y) for click in trial.clicks] for trial in trials], np.float32)
    return coords, np.array([[click.label for click in trial.clicks] for trial in trials])


@dataclass(frozen=True)
class Report:
    """The measurements on one data set."""

    dataset: Dataset
    objects: tuple[ObjectResult, ...]
    complete: bool = True

    @property
    def summary(self) -> Summary:
        """The metrics over all objects."""
        return summarize(self.objects)


def to_json(reports: Sequence[Report], settings: EvaluationSettings, server: dict[str, Any]) -> dict[str, Any]:
    """Return all measurements as plain Python types, ready for JSON.

    Returns:
        The server, the settings, and the metrics and results of every object for each data set.
    """
    return {
        "server": server,
        "settings": asdict(settings),
        "datasets": [
            {
                "name": report.dataset.name,
                "about": report.dataset.about,
                "complete": report.complete,
                "unused": list(report.dataset.unused),
                "summary": asdict(report.summary),
                "objects": [asdict(result) for result in report.objects],
            }
            for report in reports
        ],
    }


def table(reports: Sequence[Report]) -> str:
    """Return the metrics as plain text, with a row per metric and a column per data set (at least one).

    Metrics without values are left out.
    """
    summaries = [report.summary for report in reports]
    titles = [report.dataset.name + ("" if report.complete else " (partial)") for report in reports]
    width = max(11, *(len(title) + 2 for title in titles))
    rows = [("", titles), *_rows(summaries)]
    return "\n".join(f"{name:{_FIRST_COLUMN}}" + "".join(f"{cell:>{width}}" for cell in cells) for name, cells in rows)


def _rows(summaries: Sequence[Summary]) -> list[tuple[str, list[str]]]:
    rows = [
        ("images", [str(each.images) for each in summaries]),
        ("objects", [str(each.objects) for each in summaries]),
    ]
    for index in range(len(summaries[0].clicks)):
        name = "mean IoU  1 click" if index == 0 else f"          {index + 1} clicks"
        rows.append((name, [_format(each.clicks[index]) for each in summaries]))
    rows += [
        ("          best of 3, by its score", [_format(each.best_by_score) for each in summaries]),
        ("          best of 3, by the truth", [_format(each.best_by_truth) for each in summaries]),
        ("          box", [_format(each.box) for each in summaries]),
    ]
    if any(each.shaken_box is not None for each in summaries):
        rows.append(("          box, drawn in haste", [_format(each.shaken_box) for each in summaries]))
    for index, target in enumerate(summaries[0].targets):
        percent = f"{target.iou:.0%}".replace("%", "")
        rows.append(
            (f"NoC{percent}     clicks to {percent} %", [f"{each.targets[index].clicks:.2f}" for each in summaries])
        )
        rows.append(("          objects that get there", [f"{each.targets[index].reached:.0%}" for each in summaries]))
    names = {"click": "1 click", "candidates": "3 candidates", "box": "box", "all": "all answers"}
    known = [kind for kind in names if any(each.spearman[kind] is not None for each in summaries)]
    for number, (kind, words) in enumerate((kind, names[kind]) for kind in known):
        rows.append((f"{'Spearman' if number == 0 else '':10}{words}", [_format(s.spearman[kind]) for s in summaries]))
    return rows


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
