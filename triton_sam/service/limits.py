"""Reads a service's limits, its callers' quota and the settings of tools from JSON."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from .._common.checks import is_finite_number
from ..concepts.query import MAX_TEXTS
from ..errors import ConfigurationError
from .settings import LIMITS, ServiceSettings
from .tokens import QUOTAS, Quota

WORDS, STORAGE = "cvat_words", "label_studio_private_storage"


def read_limits(given: str) -> dict[str, Any]:
    """Return arguments of ServiceSettings.

    ``{"max_body": 128, "requests_per_minute": 600, "cvat_words": ["person", "car"]}``
    """
    where = "--limits" if given.lstrip().startswith("{") else f"--limits {given}"
    try:
        found = json.loads(given if where == "--limits" else Path(given).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{where} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f'{where}: give a JSON object such as {{"max_body": 128}}')
    known = (*LIMITS, *QUOTAS, WORDS, STORAGE)
    unknown = next((name for name in found if name not in known), None)
    if unknown is not None:
        raise ConfigurationError(f"{where}: unknown limit {unknown!r:.60}; the limits are {', '.join(known)}")
    try:
        settings: dict[str, Any] = {
            LIMITS[name][0]: _limit(name, value) for name, value in found.items() if name in LIMITS
        }
        if WORDS in found:
            settings[WORDS] = _words(found[WORDS])
        if STORAGE in found:
            settings[STORAGE] = found[STORAGE] is True
        return {**settings, "quota": Quota(**{name: found[name] for name in QUOTAS if name in found})}
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _limit(name: str, value: Any) -> int | float:
    member, unit = LIMITS[name]
    if not is_finite_number(value) or not 0 < value * unit < math.inf:
        raise ConfigurationError(f"{name} must be a number above 0, not {value!r:.40}")
    if isinstance(_DEFAULTS[member], float):
        return float(value)
    if unit == 1 and value != int(value):
        raise ConfigurationError(f"{name} must be a whole number, not {value!r:.40}")
    return round(value * unit)


def _words(value: Any) -> tuple[str, ...]:
    """Return words without duplicates, because CVAT's labels are unique."""
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigurationError(f"{WORDS} must be a list of words")
    words = tuple(dict.fromkeys(word.strip() for word in value if word.strip()))
    if len(words) > MAX_TEXTS:
        raise ConfigurationError(f"{WORDS} takes up to {MAX_TEXTS} words, not {len(words)}")
    return words


_DEFAULTS = {each.name: each.default for each in fields(ServiceSettings)}
