"""Shorten texts, and make them valid UTF-8."""

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


def valid_utf8(text: str) -> str:
    """Return a text without surrogates, for formats that allow only valid UTF-8.

    Python decodes the bytes of a file name to surrogates if they are not UTF-8, or in the locale C not ASCII. Bytes
    that are UTF-8 become characters again; others become replacement characters.
    """
    return text.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")
