"""The results of a run, whose measurements are rows of the same form, and their table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .._common.text import aligned


@dataclass(frozen=True)
class Times:
    """Statistics of durations in milliseconds. A percentile between two durations is the longer one."""

    median: float
    min: float
    max: float
    p95: float
    p99: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Times:
        """Return the statistics of one or more durations in milliseconds."""
        p95, p99 = (float(np.percentile(values, q, method="higher")) for q in (95, 99))
        return Times(statistics.median(values), min(values), max(values), p95, p99, len(values))


@dataclass(frozen=True)
class Row:
    """One measurement. The field names are those of the JSON file.

    Args:
        protocol: http or grpc; None without requests.
        size: number of concurrent users, or of objects in one call; None if neither applies.
        more: further metrics by name. The name ends with the unit.
    """

    section: str
    what: str
    who: str
    protocol: str | None = None
    size: int | None = None
    ms: Times | None = None
    per_second: float | None = None
    more: dict[str, float] = field(default_factory=dict)


@dataclass
class Results:
    about: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = True

    def add(self, *rows: Row) -> None:
        self.rows.extend(rows)

    def note(self, sentence: str) -> None:
        """Append a note, unless it already exists."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def limit(self, what: str) -> Times | None:
        """Return the times of an operation in process, which no server can beat; None if they were not measured."""
        return next((row.ms for row in self.of("comparison", what) if row.who == "inprocess"), None)

    def to_json(self) -> dict[str, Any]:
        """Return the results as a dictionary of JSON types; numbers have six significant digits."""
        rows = [_rounded(asdict(row)) for row in self.rows]
        return {"complete": self.complete, **self.about, "rows": rows, "notes": self.notes}

    def of(self, section: str, what: str | None = None) -> list[Row]:
        """Return the rows of a section, or of one stage, operation or scenario of the section."""
        return [row for row in self.rows if row.section == section and what in (None, row.what)]


def times_row(section: str, what: str, who: str, values: Iterable[float], **options: Any) -> list[Row]:
    """Return a list of one row with these durations in milliseconds; empty without durations."""
    listed = list(values)
    return [Row(section, what, who, ms=Times.of(listed), **options)] if listed else []


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


COUNTED = ("speculative", "load")
"""Sections whose rows show further metrics."""
WHO = {  # in the order of the plots
    "inprocess": "ONNX Runtime in process, on this CPU (the limit)",
    "openvino": "in process, encoder in bf16 on OpenVINO",
    "session": "session model",
    "request": "embeddings in the request",
    "naive": "naive client: embeddings in each click",
    "torch": "official predictor, PyTorch eager on this CPU",
    "torch-bf16": "official predictor, PyTorch eager on this CPU, bf16",
    "client": "on the client's side",
}
COLORS = {
    "inprocess": "#4c4c4c",
    "openvino": "#56b4e9",
    "session": "#0072b2",
    "request": "#d55e00",
    "naive": "#d55e00",
    "torch": "#cc79a7",
    "torch-bf16": "#e69f00",
    "client": "#999999",
}
"""Colours that are distinguishable with colour vision deficiency."""


def name_of(who: str, protocol: str | None) -> str:
    return WHO[who] + {None: "", "http": ", HTTP", "grpc": ", gRPC"}[protocol]


def table(results: Results) -> str:
    """Return the results as plain text: one line per row, then the notes."""
    head = ("section", "what", "who", "median ms", "min", "max", "p95", "per s", "n", "x limit")
    rows = []
    for row in results.rows:
        who = row.who + (f" {row.protocol}" if row.protocol else "") + (f" x{row.size}" if row.size else "")
        times = (
            [f"{value:.1f}" for value in (row.ms.median, row.ms.min, row.ms.max, row.ms.p95)] if row.ms else [""] * 4
        )
        rate = "" if row.per_second is None else f"{row.per_second:.2f}"
        rows.append([row.section, row.what, who, *times, rate, str(row.ms.n) if row.ms else "", _ratio(results, row)])
    lines = [aligned(head, rows, right=range(3, len(head)))]
    for row in results.rows:
        if row.section in COUNTED:
            counts = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in row.more.items())
            lines.append(f"{row.what}, {row.protocol}: {', '.join(counts)}")
    if not results.complete:
        lines.append("This run was stopped before its end.")
    return "\n".join([*lines, *results.notes])


def _ratio(results: Results, row: Row) -> str:
    """Return the time of a contender as a multiple of the time in process."""
    limit = results.limit(row.what) if row.section == "comparison" else None
    return f"{row.ms.median / limit.median:.2f}" if row.ms and limit else ""
