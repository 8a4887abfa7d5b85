"""Checks of the members of a message, declared beside the fields of its dataclass; and checks of values from JSON."""

from __future__ import annotations

import math
import numbers
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard

_RULE = "rule"
_LARGEST = sys.float_info.max
"""Larger integers do not fit a float."""


@dataclass(frozen=True)
class _Rule:
    holds: Callable[[Any], bool]
    text: str


def number(
    default: float | None,
    low: float = -_LARGEST,
    high: float = _LARGEST,
    *,
    below: float = math.inf,
    whole: bool = False,
    optional: bool = False,
) -> Any:
    """Return a field of a dataclass for a finite number.

    Args:
        optional: whether None is allowed; it always is if it is the default.
    """
    may_be_none, kind = optional or default is None, numbers.Integral if whole else numbers.Real

    def holds(value: Any) -> bool:
        if value is None:
            return may_be_none
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        return is_number and low <= value <= high and value < below

    noun = "a whole number" if whole else "a number"
    if below < math.inf:
        text = f"{noun} of at least {low:g} and below {below:g}"
    elif high < _LARGEST:
        text = f"{noun} within {low:g}..{high:g}"
    else:
        text = f"{noun} of at least {low:g}" if low > -_LARGEST else f"{noun} that is finite"
    return field(default=default, metadata={_RULE: _Rule(holds, text)})


def switch(default: bool) -> Any:
    """Return a field of a dataclass for true or false."""
    return field(default=default, metadata={_RULE: _Rule(lambda value: isinstance(value, bool), "true or false")})


def check_fields(message: Any, error: type[Exception], prefix: str = "") -> None:
    """Check the fields that number() and switch() created, and convert NumPy's numbers to Python's."""
    for each in fields(message):
        rule, value = each.metadata.get(_RULE), getattr(message, each.name)
        if rule is None:
            continue
        if not rule.holds(value):
            raise error(f"{prefix}{each.name} must be {rule.text}, not {value!r:.40}")
        if value is not None and not isinstance(value, (bool, int, float)):
            plain = int(value) if isinstance(value, numbers.Integral) else float(value)
            object.__setattr__(message, each.name, plain)


def check_names(given: Iterable[Any], known: Iterable[str], error: type[Exception], prefix: str = "") -> None:
    names = list(known)
    for name in given:
        if name not in names:
            raise error(f"{prefix}there is no parameter {str(name)[:40]!r}: the parameters are {', '.join(names)}")


def is_finite_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold: False for NaN, infinity, 10**400 and True."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def whole_number(value: Any) -> int:
    """Return a whole number, which files also write as 1.0 or as text.

    Raises:
        TypeError, ValueError, OverflowError: it is not a whole number.
    """
    number = int(value)
    if isinstance(value, bool) or (isinstance(value, float) and number != value):
        raise ValueError(f"{value} is not a whole number")
    return number


def json_kind(value: Any) -> str:
    """Return the JSON type of a value in words, for errors such as "must be text, not a number"."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return kinds.get(type(value), "a value that JSON does not have")


def is_base64(content: bytes) -> bool:
    """Return whether bytes look like base64 or a data URL instead of a file. No image file does."""
    return re.match(rb"data:[^,]{0,100};base64,|[A-Za-z0-9+/\r\n]{64}", content) is not None
