"""Callers' tokens, with a quota for each: limits per minute, per hour, and for concurrent requests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .._common.checks import is_finite_number
from ..errors import ConfigurationError

EVERYBODY = "everybody"
"""The name of all callers together, if the service requires no token."""
SINGLE = "default"
"""The name of the caller with the token of ``--token``."""


@dataclass(frozen=True)
class Quota:
    """The limits of one caller. None: no limit."""

    requests_per_minute: float | None = None
    image_mib_per_hour: float | None = None
    requests_at_a_time: int | None = None
    pages: int | None = None

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if value is None:
                continue
            if not is_finite_number(value) or value <= 0:
                raise ConfigurationError(
                    f"the quota {part.name} must be a finite number above 0, not {value!r:.40}: "
                    "leave it out for no limit"
                )


QUOTAS = tuple(part.name for part in fields(Quota))
NO_QUOTA = Quota()


@dataclass(frozen=True)
class Token:
    name: str
    secret: str = field(repr=False)
    quota: Quota = NO_QUOTA


def read_tokens(path: str | Path, quota: Quota = NO_QUOTA) -> tuple[Token, ...]:
    """Read a token file: JSON with an object for each caller, by name.

    ``{"lab": {"token": "SECRET", "requests_per_minute": 60}, "clinic": {"token": "OTHER"}}``
    """
    try:
        callers = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--tokens {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--tokens {path} is not JSON: {error}") from None
    if not isinstance(callers, dict) or not callers:
        raise ConfigurationError(f'{path}: give a JSON object such as {{"lab": {{"token": "SECRET"}}}}')
    return tuple(_token(path, name, members, quota) for name, members in callers.items())


def _token(path: str | Path, name: str, members: Any, quota: Quota) -> Token:
    where = f"{path}: caller {name!r:.60}"
    secret = members.get("token") if isinstance(members, dict) else None
    if not isinstance(secret, str) or not secret.strip():
        raise ConfigurationError(f'{where}: its "token" must be a text that is not empty')
    if not name.strip() or name in (EVERYBODY, SINGLE):
        raise ConfigurationError(f"{where}: choose another name")
    limits = {key: value for key, value in members.items() if key != "token"}
    unknown = sorted(set(limits) - set(QUOTAS))
    if unknown:
        raise ConfigurationError(f"{where}: there is no quota {unknown[0]!r:.60}, but {', '.join(QUOTAS)}")
    try:
        return Token(name, secret.strip(), replace(quota, **limits))
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
