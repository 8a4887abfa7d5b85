"""The measurement: every object of a data set gets its clicks and boxes, through the served path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..client.segmenter import Segmenter
from ..errors import ConfigurationError, InputError
from ..masks.compare import intersection_over_union
from ..masks.rle import BoolArray
from ..masks.segment import Segment
from .clicks import Click, first_click, next_click, shaken_box, tight_box
from .metrics import Answer, ObjectResult
from .samples import Dataset, Sample

MAX_CLICKS = 8
_MAX_BATCH = 16  # objects in one request: their answers stay at a few megabytes
_BATCH_PIXELS = 32_000_000  # of one request's masks at the picture's size: bounds memory for large pictures


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        clicks: most clicks an object, 1..8.
        feed_mask: hand the logits of the last round to the next one, as SAM is trained; False: clicks alone.
        box_jitter: also try boxes drawn in haste, with this deviation of a side; 0: do not. See clicks.shaken_box.
        most_objects: of one picture; more are thinned out at random.
        seed: for that choice and for the boxes.

    Raises:
        ConfigurationError: a value out of range.
    """

    clicks: int = MAX_CLICKS
    feed_mask: bool = True
    box_jitter: float = 0.0
    most_objects: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.clicks <= MAX_CLICKS:
            raise ConfigurationError(f"clicks must be within 1..{MAX_CLICKS}, not {self.clicks}")
        if not 0 <= self.box_jitter <= 0.5:
            raise ConfigurationError(f"the jitter of boxes must be within 0..0.5, not {self.box_jitter:g}")
        if self.most_objects < 1 or self.seed < 0:
            raise ConfigurationError("the number of objects must be at least 1 and the seed at least 0")


@dataclass(eq=False)
class Trial:
    """One object while it is measured; its masks are kept for pictures of it.

    Args:
        sample: the picture.
        label: the object's number in it.
        truth: bool (H,W), the object.
        prompts: clicks so far.
        clicks: answers so far.
        candidates: answers of the three candidates of one click.
        segments: the last answer to clicks ("last"), that to the first one ("first"), to the box ("box") and to the
            shaken box ("shaken_box").
    """

    sample: Sample
    label: int
    truth: BoolArray
    prompts: list[Click] = field(default_factory=list)
    clicks: list[Answer] = field(default_factory=list)
    candidates: list[Answer] = field(default_factory=list)
    segments: dict[str, Segment] = field(default_factory=dict)

    def click(self) -> bool:
        """Add the next click; False when there is nothing to correct."""
        last = self.segments.get("last")
        click = first_click(self.truth) if last is None else next_click(self.truth, last.mask, self.prompts)
        if click is not None:
            self.prompts.append(click)
        return click is not None

    def answer(self, segment: Segment) -> Answer:
        """Compare an answer with the truth."""
        return Answer(intersection_over_union(segment.mask, self.truth), segment.score)

    def take(self, segment: Segment) -> None:
        """Keep the answer to the newest click."""
        self.segments.setdefault("first", segment)
        self.segments["last"] = segment
        self.clicks.append(self.answer(segment))

    def result(self) -> ObjectResult:
        """Return the figures of a finished trial."""
        shaken = self.segments.get("shaken_box")
        return ObjectResult(
            image=self.sample.name,
            label=self.label,
            area=int(np.count_nonzero(self.truth)),
            prompts=tuple(self.prompts),
            clicks=tuple(self.clicks),
            candidates=tuple(self.candidates),
            box=self.answer(self.segments["box"]),
            shaken_box=None if shaken is None else self.answer(shaken),
        )


def measure(client: Segmenter, dataset: Dataset, settings: Settings) -> Iterator[tuple[int, list[Trial]]]:
    """Measure a data set, some objects at a time; a caller who stops has what was yielded so far.

    Yields:
        (number of pictures finished, finished trials).

    Raises:
        InputError: not one picture holds an object; a label mask of another size than its picture.
        ServerError: see triton_sam.errors.
    """
    found = False
    for number, sample in enumerate(dataset):
        if sample.labels.shape != (sample.image.height, sample.image.width):
            raise InputError(f"{sample.name}: the label mask is not as large as the picture")
        rng = np.random.default_rng([settings.seed, number])
        objects = _objects(sample, settings.most_objects, rng)
        if objects:
            found = True
            client.set_image(sample.image)
        most = min(max(_BATCH_PIXELS // sample.labels.size, 1), _MAX_BATCH)
        for start in range(0, len(objects), most):
            batch = [Trial(sample, label, sample.labels == label) for label in objects[start : start + most]]
            _measure_boxes(client, batch, settings.box_jitter, rng)
            _measure_clicks(client, batch, settings)
            yield number + (start + most >= len(objects)), batch
    if not found:
        raise InputError(f"no objects in {dataset.name}: its label masks are 0 everywhere")


def _objects(sample: Sample, most: int, rng: np.random.Generator) -> list[int]:
    """Return the numbers of the objects to measure."""
    numbers = [int(number) for number in np.unique(sample.labels) if number != 0]
    if len(numbers) > most:
        numbers = sorted(int(number) for number in rng.permutation(numbers)[:most])
    return numbers


def _measure_boxes(client: Segmenter, trials: Sequence[Trial], jitter: float, rng: np.random.Generator) -> None:
    boxes = {"box": [tight_box(trial.truth) for trial in trials]}
    if jitter > 0:
        boxes["shaken_box"] = [shaken_box(trial.truth, jitter, rng) for trial in trials]
    for kind, drawn in boxes.items():
        for trial, segment in zip(trials, client.segment(box=np.stack(drawn)), strict=True):
            trial.segments[kind] = segment


def _measure_clicks(client: Segmenter, trials: Sequence[Trial], settings: Settings) -> None:
    """Click round by round. A trial without error left keeps its last answer for the remaining rounds."""
    open_trials = list(trials)
    for number in range(settings.clicks):
        open_trials = [trial for trial in open_trials if trial.click()]
        if open_trials:
            _one_round(client, open_trials, settings.feed_mask and number > 0)
            if number == 0:
                _candidates(client, open_trials)
        for trial in trials:
            if len(trial.clicks) == number:
                trial.clicks.append(trial.clicks[-1])


def _one_round(client: Segmenter, trials: Sequence[Trial], feed_mask: bool) -> None:
    coords, labels = _points(trials)
    earlier = [trial.segments["last"].logits for trial in trials] if feed_mask else []
    logits = np.stack([item for item in earlier if item is not None])[:, None] if feed_mask else None
    for trial, segment in zip(trials, client.segment(coords, labels, mask_input=logits), strict=True):
        trial.take(segment)


def _candidates(client: Segmenter, trials: Sequence[Trial]) -> None:
    coords, labels = _points(trials)
    for segment in client.segment(coords, labels, multimask_output=True):
        trial = trials[segment.object_index]
        trial.candidates.append(trial.answer(segment))


def _points(trials: Sequence[Trial]) -> tuple[Any, Any]:
    """Return coords (P,N,2) and labels (P,N): trials of one round have the same number of clicks."""
    coords = np.array([[(click.x, click.y) for click in trial.prompts] for trial in trials], np.float32)
    return coords, np.array([[click.label for click in trial.prompts] for trial in trials])
