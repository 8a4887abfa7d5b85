"""The results as images: a plot of mean IoU against clicks, and a contact sheet of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .._common.extras import missing
from .._common.files import atomic_path
from ..masks.drawing import FOREGROUND, PALETTE, Color, overlay
from ..masks.rle import BoolArray
from .clicks import Click, tight_box
from .runner import Report, Trial

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise missing("the plot needs", "evaluate", error) from error

# Sizes in pixels.
SAMPLE = 8
"""Maximum number of objects in the sample of a data set."""
_TILE = 240
_CAPTION = 22
_GAP = 6
_MIN_WINDOW = 64

_PAPER: Color = (255, 255, 255)
_INK: Color = (30, 30, 30)


@dataclass(frozen=True)
class Example:
    """One object of the contact sheet: (caption, image) of the truth, the first, the last and the box's mask."""

    iou: float
    tiles: tuple[tuple[str, Image.Image], ...]


class Examples:
    """A uniform random sample of all added objects (reservoir sampling: Vitter, 1985, algorithm R).

    Each object is converted to small tiles when it is added, so that its large image and masks can be freed.
    """

    def __init__(self, seed: int) -> None:
        self.rows: list[Example] = []
        self._seen = 0
        self._rng = np.random.default_rng(seed)

    def add(self, trial: Trial) -> None:
        """Add a finished trial as a candidate for the sample."""
        self._seen += 1
        if len(self.rows) < SAMPLE:
            self.rows.append(_row(trial))
            return
        place = int(self._rng.integers(self._seen))
        if place < SAMPLE:
            self.rows[place] = _row(trial)


def plot(reports: Sequence[Report], path: Path) -> None:
    """Plot mean IoU against clicks as a PNG file.

    Each data set has a line, a shaded area between its quartiles, a dashed line for boxes, and a marker for the best of
    three candidates.
    """
    figure = Figure(figsize=(7.2, 4.8), dpi=140, layout="constrained")
    axes = figure.add_subplot()
    for number, report in enumerate(reports):
        summary = report.summary
        colour = tuple(value / 255 for value in PALETTE[number % len(PALETTE)])
        clicks = np.arange(1, len(summary.clicks) + 1)
        low, high = zip(*summary.quartiles, strict=True)
        name = report.dataset.name
        axes.plot(clicks, summary.clicks, "o-", color=colour, label=f"{name}: clicks ({summary.objects} objects)")
        axes.fill_between(clicks, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.axhline(summary.box, color=colour, linestyle="--", linewidth=1.2, label=f"{name}: box")
        axes.plot([1], [summary.best_by_truth], "D", color=colour, fillstyle="none", label=f"{name}: best of three")
    axes.set(xlabel="clicks", ylabel="IoU: mean, middle half shaded", ylim=(0, 1.01))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def contact_sheet(examples: Sequence[Example], path: Path) -> None:
    """Write examples as a PNG file with one row per object, sorted by the IoU after the first click."""
    rows = [example.tiles for example in sorted(examples, key=lambda example: example.iou)]
    width = len(rows[0]) * (_TILE + _GAP) + _GAP
    height = len(rows) * (_TILE + _CAPTION + _GAP) + _GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for row_number, row in enumerate(rows):
        top = _GAP + row_number * (_TILE + _CAPTION + _GAP)
        for column, (caption, tile) in enumerate(row):
            left = _GAP + column * (_TILE + _GAP)
            draw.text((left, top + 1), caption, fill=_INK, font=font)
            sheet.paste(tile, (left, top + _CAPTION))
    with atomic_path(path) as temporary:
        sheet.save(temporary, format="PNG")


def _row(trial: Trial) -> Example:
    """Draw the tiles of one object."""
    first, last, box = (trial.segments[kind] for kind in ("first", "last", "box"))
    count = len(trial.clicks)
    name = trial.sample.name if len(trial.sample.name) <= 20 else f"{trial.sample.name[:19]}…"
    tiles = (
        (f"{name}, object {trial.label}", _tile(trial, trial.truth, FOREGROUND)),
        (f"1 click: IoU {trial.click_answers[0].iou:.3f}", _tile(trial, first.mask, PALETTE[0], trial.clicks[:1])),
        (
            f"{count} click{'s' * (count != 1)}: IoU {trial.click_answers[-1].iou:.3f}",
            _tile(trial, last.mask, PALETTE[0], trial.clicks),
        ),
        (f"box: IoU {trial.compare(box).iou:.3f}", _tile(trial, box.mask, PALETTE[0], draw_box=True)),
    )
    return Example(trial.click_answers[0].iou, tiles)


def _tile(
    trial: Trial, mask: BoolArray, colour: Color, clicks: Sequence[Click] = (), draw_box: bool = False
) -> Image.Image:
    """Draw a mask and its prompts in a square window, twice as large as the object but at most the image."""
    image, box = trial.sample.image, tight_box(trial.truth)
    side = max(_MIN_WINDOW, min(round(2 * float(max(box[2:] - box[:2]))), max(image.size)))
    left, top = (
        min(max(round(float(middle) - side / 2), 0), max(length - side, 0))
        for middle, length in zip((box[:2] + box[2:]) / 2, image.size, strict=True)
    )
    window = Image.new("RGB", (side, side), _PAPER)
    window.paste(image, (-left, -top))
    tile = window.resize((_TILE, _TILE), Image.Resampling.LANCZOS)
    stencil = Image.fromarray(mask.astype(np.uint8)).crop((left, top, left + side, top + side))
    stencil = stencil.resize((_TILE, _TILE), Image.Resampling.NEAREST)
    scale = _TILE / side
    points = [((click.x + 0.5 - left) * scale, (click.y + 0.5 - top) * scale) for click in clicks]
    boxes = (box - np.tile((left, top), 2)) * scale if draw_box else None
    labels = [click.label for click in clicks]
    return overlay(tile, [np.asarray(stencil)], points or None, labels or None, boxes, colors=[colour], alpha=0.35)
