"""Texts of errors: short ones, and words for values that users of JSON know."""

from __future__ import annotations

from typing import Any

MAX_LINE = 500


def one_line(error: BaseException) -> str:
    """Return the text of an error as one line of at most 500 characters; without text, the name of the error's type."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


def first_line(error: BaseException) -> str:
    """Return the first line of the text of an error; without text, the name of the error's type."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def json_kind(value: Any) -> str:
    """Return what a value is in the words of JSON, for errors such as "must be text, not a number"."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return kinds.get(type(value), "a value that JSON does not have")
