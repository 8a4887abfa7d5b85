"""Plain-text tables for a terminal, without empty columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

NO_VALUES = ("", "-")
"""Cells that stand for a missing value."""


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return a table as plain text with two spaces between columns. Columns without any value are left out.

    A table without rows keeps all columns.

    Args:
        right: indices of the right-aligned columns.
    """
    kept = [number for number in range(len(head)) if not rows or any(row[number] not in NO_VALUES for row in rows)]
    lines = [[line[column] for column in kept] for line in (head, *rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    sides = [">" if column in right else "<" for column in kept]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)).rstrip()
        for line in lines
    )
