"""Checks of the members of a message, declared beside the fields of its dataclass."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

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
    """Check that all names are known."""
    names = list(known)
    for name in given:
        if name not in names:
            raise error(f"{prefix}there is no parameter {str(name)[:40]!r}: the parameters are {', '.join(names)}")
