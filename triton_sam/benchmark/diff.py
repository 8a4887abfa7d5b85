"""Compare two results: which measurements became faster or slower, and whether the difference exceeds their spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .results import Results, Row


@dataclass(frozen=True)
class Change:
    """The change of one measurement that both results contain.

    Args:
        row: the row of the newer result.
        before: the older value, in ``unit``.
        after: the newer value, in ``unit``.
        faster: the newer speed divided by the older one; below 1 the measurement became slower.
        clear: whether the ranges from min to max do not overlap.
        unit: "ms" for a median duration in milliseconds, "/s" for calls per second.
    """

    row: Row
    before: float
    after: float
    faster: float
    clear: bool
    unit: str = "ms"


def compare(before: Results, after: Results) -> list[Change]:
    """Return the change of every row that both results contain, in the order of the newer result."""
    older = {row.key: row for row in before.rows}
    changes = []
    for row in after.rows:
        old = older.get(row.key)
        if old is None:
            continue
        # In other sections a higher rate is not better: it counts refusals, or users whose pauses set the pace.
        if row.section == "throughput" and row.per_second and old.per_second:
            changes.append(Change(row, old.per_second, row.per_second, row.per_second / old.per_second, False, "/s"))
        elif row.ms and old.ms and row.ms.median > 0:
            clear = row.ms.max < old.ms.min or row.ms.min > old.ms.max
            changes.append(Change(row, old.ms.median, row.ms.median, old.ms.median / row.ms.median, clear))
    return changes


def differences(before: Results, after: Results) -> list[str]:
    """Return the reasons why two results are hard to compare, such as another machine or image, one line for each."""
    pairs = {
        "processor": ("machine", "cpu"),
        "threads": ("machine", "usable_threads"),
        "family": ("model", "family"),
        "weights": ("model", "weights"),
        "precision": ("model", "precision"),
        "server": ("model", "server_version"),
        "image": ("model", "picture"),
        "link": ("settings", "link"),
    }
    lines = []
    for name, (part, key) in pairs.items():
        old, new = before.about[part][key], after.about[part][key]
        if old != new:
            lines.append(f"{name}: {old} before, {new} after")
    for name, results in (("before", before), ("after", after)):
        if not results.complete:
            lines.append(f"the run '{name}' was stopped before its end")
    return lines


def to_json(before: Results, after: Results) -> dict[str, Any]:
    """Return the comparison as a dictionary that `json.dumps` accepts."""
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
    """Return the comparison as a table in plain text."""
    lines = [f"different conditions: {line}" for line in differences(before, after)]
    lines.append(f"{'':60} {'before':>10} {'after':>10}  {'unit':4} {'times as fast':>13}")
    for change in compare(before, after):
        row = change.row
        who = row.who + (f" {row.protocol}" if row.protocol else "") + (f" x{row.size}" if row.size else "")
        mark = "  *" if change.clear else ""
        name = f"{row.section:11} {row.what[:32]:32} {who}"
        values = f"{change.before:10.2f} {change.after:10.2f}  {change.unit:4} {change.faster:13.2f}"
        lines.append(f"{name:60} {values}{mark}")
    lines.append("\n*: the ranges from min to max do not overlap")
    return "\n".join(lines)
