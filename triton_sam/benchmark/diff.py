"""Two results side by side: what became faster, what slower, and whether the spread allows to say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .results import Results, Row


@dataclass(frozen=True)
class Change:
    """One thing that both results have.

    Args:
        row: the newer row.
        before: median milliseconds, or calls a second.
        after: the same in the newer result.
        faster: how many times as fast it became; below 1: slower.
        clear: whether the spreads from min to max do not overlap.
        unit: ms, or /s.
    """

    row: Row
    before: float
    after: float
    faster: float
    clear: bool
    unit: str = "ms"


def compare(before: Results, after: Results) -> list[Change]:
    """Return changes of all rows that both results have, in the order of the newer one."""
    older = {row.key: row for row in before.rows}
    changes = []
    for row in after.rows:
        old = older.get(row.key)
        if old is None:
            continue
        # Elsewhere more calls a second are not better: of refusals, or of users whose pauses set the pace.
        if row.section == "throughput" and row.per_second and old.per_second:
            changes.append(Change(row, old.per_second, row.per_second, row.per_second / old.per_second, False, "/s"))
        elif row.ms and old.ms and row.ms.median > 0:
            clear = row.ms.max < old.ms.min or row.ms.min > old.ms.max
            changes.append(Change(row, old.ms.median, row.ms.median, old.ms.median / row.ms.median, clear))
    return changes


def differences(before: Results, after: Results) -> list[str]:
    """Return what makes the two hard to compare: other machines, models, pictures or links, one line each."""
    pairs = {
        "processor": ("machine", "cpu"),
        "threads": ("machine", "usable_threads"),
        "family": ("model", "family"),
        "weights": ("model", "weights"),
        "precision": ("model", "precision"),
        "server": ("model", "server_version"),
        "picture": ("model", "picture"),
        "link": ("settings", "link"),
    }
    lines = []
    for name, (part, key) in pairs.items():
        old, new = before.about[part][key], after.about[part][key]
        if old != new:
            lines.append(f"{name}: {old} before, {new} after")
    for name, results in (("before", before), ("after", after)):
        if not results.complete:
            lines.append(f"the run {name} was stopped before its end")
    return lines


def to_json(before: Results, after: Results) -> dict[str, Any]:
    """Return the comparison as JSON types."""
    return {
        "differences": differences(before, after),
        "changes": [
            {
                "section": change.row.section,
                "what": change.row.what,
                "who": change.row.who,
                "protocol": change.row.protocol,
                "size": change.row.size,
                "before": change.before,
                "after": change.after,
                "unit": change.unit,
                "faster": round(change.faster, 3),
                "clear": change.clear,
            }
            for change in compare(before, after)
        ],
    }


def table(before: Results, after: Results) -> str:
    """Return the comparison as plain text."""
    lines = [f"not alike: {line}" for line in differences(before, after)]
    lines.append(f"{'':60} {'before':>10} {'after':>10}  {'unit':4} {'times as fast':>13}")
    for change in compare(before, after):
        row = change.row
        who = row.who + (f" {row.protocol}" if row.protocol else "") + (f" x{row.size}" if row.size else "")
        mark = "  *" if change.clear else ""
        name = f"{row.section:11} {row.what[:32]:32} {who}"
        figures = f"{change.before:10.2f} {change.after:10.2f}  {change.unit:4} {change.faster:13.2f}"
        lines.append(f"{name:60} {figures}{mark}")
    lines.append("\n*: the two spreads from min to max do not overlap")
    return "\n".join(lines)
