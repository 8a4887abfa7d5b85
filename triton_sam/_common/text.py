"""Shorten the texts of errors."""

from __future__ import annotations

MAX_LINE = 500


def one_line(error: BaseException) -> str:
    """Return the text of an error as one line of at most 500 characters; without text, the name of the error's type."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def first_line(error: BaseException) -> str:
    """Return the first line of the text of an error; without text, the name of the error's type."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
