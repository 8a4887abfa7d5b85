"""Checks of values from JSON: finite numbers, base64, and the names of JSON types."""

from __future__ import annotations

import re
import sys
from typing import Any, TypeGuard


def is_finite_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold: False for NaN, infinity, 10**400 and True."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def json_kind(value: Any) -> str:
    """Return the JSON type of a value in words, for errors such as "must be text, not a number"."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return kinds.get(type(value), "a value that JSON does not have")


def is_base64(content: bytes) -> bool:
    """Return whether bytes look like base64 or a data URL instead of a file. No image file does."""
    return re.match(rb"data:[^,]{0,100};base64,|[A-Za-z0-9+/\r\n]{64}", content) is not None
