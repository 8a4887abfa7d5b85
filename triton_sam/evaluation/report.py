"""The results as a plain-text table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .datasets import Dataset
from .metrics import ObjectResult, Summary, summarize
from .runner import EvaluationSettings

_FIRST_COLUMN = 34  # characters


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
