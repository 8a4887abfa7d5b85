"""Results: rows of one form for whatever was measured, and the JSON and CSV files made of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FORMAT = 1
"""Of the JSON file; counts up when a reader would misunderstand a newer file."""
RECOVERED, NOT_RECOVERED = "recovered_s", "not_recovered_s"
"""Of a row's further figures, after an overload: when clicks were as fast as before, or how long they were not."""


@dataclass(frozen=True)
class Times:
    """Some durations in milliseconds, summed up. A percentile between two of them is the upper one."""

    median: float
    min: float
    max: float
    p95: float
    p99: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Times:
        """Sum up one or more durations."""
        p95, p99 = (float(np.percentile(values, q, method="higher")) for q in (95, 99))
        return Times(statistics.median(values), min(values), max(values), p95, p99, len(values))


@dataclass(frozen=True)
class Row:
    """One thing that was measured.

    Args:
        section: of settings.SECTIONS.
        what: stage, operation or scenario.
        who: who did it: session, request, shared_memory, client, torch, inprocess, naive.
        protocol: http or grpc; None where nothing is sent.
        size: users or objects at a time; None where that is not the point.
        ms: durations of single calls.
        per_second: throughput.
        more: further figures by name; the unit ends the name.
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
        """What tells a row from others of the same result, and finds it in another one."""
        return self.section, self.what, self.who, self.protocol or "", self.size or 0


@dataclass
class Results:
    """A run.

    Args:
        about: created, command, kit, machine, model, settings: see schema.json.
        rows: what was measured.
        notes: sentences about what was left out and why.
        complete: False when the run was stopped.
    """

    about: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = True

    def add(self, *rows: Row) -> None:
        """Add rows."""
        self.rows.extend(rows)

    def note(self, sentence: str) -> None:
        """Say what was left out; once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def find(
        self, section: str, what: str, who: str, protocol: str | None = None, size: int | None = None
    ) -> Row | None:
        """Return the one row, or None when it was not measured."""
        key = (section, what, who, protocol or "", size or 0)
        return next((row for row in self.rows if row.key == key), None)

    def of(self, section: str, what: str | None = None) -> list[Row]:
        """Return the rows of a section, or of one kind in it."""
        return [row for row in self.rows if row.section == section and what in (None, row.what)]


def times_row(section: str, what: str, who: str, values: Iterable[float], **options: Any) -> list[Row]:
    """Return a row of durations in milliseconds; none when nothing was measured."""
    listed = list(values)
    return [Row(section, what, who, ms=Times.of(listed), **options)] if listed else []
