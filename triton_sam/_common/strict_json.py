"""Strict JSON, which every parser reads: without the NaN and Infinity that Python's encoder writes by default."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: Any, **options: Any) -> str:
    """Return a value as JSON; numbers that are not finite become null."""
    try:
        return json.dumps(value, allow_nan=False, **options)  # noqa: TID251 - here, for all others
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **options)  # noqa: TID251


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
