"""Shorten texts, make them valid UTF-8, and align tables for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

MAX_LINE = 500


def one_line(error: BaseException) -> str:
    """Return the text of an error as one line of at most 500 characters; without text, the name of the error's type."""
    return shortened(" ".join(str(error).split()) or type(error).__name__)


def shortened(text: str) -> str:
    """Return a text of at most 500 characters; a longer one ends with "…"."""
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def first_line(error: BaseException) -> str:
    """Return the first line of the text of an error; without text, the name of the error's type."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def valid_utf8(text: str) -> str:
    """Return a text without surrogates, for formats that allow only valid UTF-8.

    Python decodes the bytes of a file name to surrogates if they are not UTF-8, or in the locale C not ASCII. Bytes
    that are UTF-8 become characters again; others become replacement characters.
    """
    return text.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")


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
