"""Values that come from JSON: whether they are numbers or base64, and words for their kinds."""

from __future__ import annotations

import re
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


def is_base64(content: bytes) -> bool:
    """Return whether bytes that should be a file look like its base64, or like a data URL. No image begins so."""
    return re.match(rb"data:[^,]{0,100};base64,|[A-Za-z0-9+/\r\n]{64}", content) is not None
