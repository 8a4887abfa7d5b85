"""Texts of errors, made short enough for a person."""

from __future__ import annotations

MAX_LINE = 500


def one_line(error: BaseException) -> str:
    """Return an error's text as one line of at most 500 characters; the name of its type when it has no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; the name of its type when it has no text."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
