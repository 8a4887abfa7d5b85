"""Tables of text for a terminal, without columns that say nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

NO_VALUES = ("", "-")
"""Cells that stand for a missing value."""


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return a table as plain text, two spaces between its columns. Columns without a value in any row are left out.

    Args:
        right: numbers of the columns that are aligned to the right, from 0 on.
    """
    kept = _columns_with_values(head, rows)
    lines = [[line[column] for column in kept] for line in (head, *rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    sides = [">" if column in right else "<" for column in kept]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)).rstrip()
        for line in lines
    )


def without_empty_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table without the columns that have no value in any row."""
    kept = _columns_with_values(head, rows)
    return [head[column] for column in kept], [[row[column] for column in kept] for row in rows]


def _columns_with_values(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the numbers of the columns to show; all of them for a table without rows."""
    return [number for number in range(len(head)) if not rows or any(row[number] not in NO_VALUES for row in rows)]
