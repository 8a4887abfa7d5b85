"""The results of a comparison, as a readable table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Protocol

from .._common import strict_json
from .._common.text import aligned


class Comparable(Protocol):
    """A dataclass for one case that a runner and the official predictor answered."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    HEAD: ClassVar[tuple[str, ...]]
    """The titles of the columns."""

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the columns."""
        ...

    def passes(self, limits: Any) -> bool:
        """Return whether the answers meet the limits."""
        ...


def format_table(rows: Sequence[Comparable], limits: Any) -> str:
    """Return the rows as aligned plain text. Each ends with a verdict: ok or FAIL."""
    lines = [(*row.cells(), "ok" if row.passes(limits) else "FAIL") for row in rows]
    return aligned((*rows[0].HEAD, ""), lines) if rows else ""


def report(rows: Sequence[Comparable], limits: Any, words: str) -> str:
    """Return the table and a verdict."""
    failed = sum(not row.passes(limits) for row in rows)
    verdict = "all within" if not failed else f"{failed} of {len(rows)} outside"
    return f"{format_table(rows, limits)}\n{verdict} the thresholds: {words}"


def report_json(rows: Sequence[Comparable], limits: Any, threshold: Any) -> str:
    """Return the rows, the verdicts and the threshold as JSON."""
    listed = [{**asdict(row), "ok": row.passes(limits)} for row in rows]
    passed = all(row.passes(limits) for row in rows)
    return strict_json.dumps({"threshold": threshold, "ok": passed, "rows": listed}, indent=1)
