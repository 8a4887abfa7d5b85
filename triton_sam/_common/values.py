"""Values that come from JSON: whether they are numbers, and words for their kinds."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard


def is_finite_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold. NaN, infinity and 10**400 are none, nor is True."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def json_kind(value: Any) -> str:
    """Return what a value is in the words of JSON, for errors such as "must be text, not a number"."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return kinds.get(type(value), "a value that JSON does not have")
