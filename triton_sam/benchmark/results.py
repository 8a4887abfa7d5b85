"""The results of a run. Every measurement is a row of the same form."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


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

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """The key of the measurement, unique within a result and equal across results."""
        return self.section, self.what, self.who, self.protocol or "", self.size or 0


@dataclass
class Results:
    """The results of a run."""

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

    def find(
        self, section: str, what: str, who: str, protocol: str | None = None, size: int | None = None
    ) -> Row | None:
        """Return the row with this key; None if it was not measured."""
        key = (section, what, who, protocol or "", size or 0)
        return next((row for row in self.rows if row.key == key), None)

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
