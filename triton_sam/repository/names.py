"""Names of models and of their files."""

from __future__ import annotations

import re

from ..errors import ConfigurationError

CONFIG_NAME = "config.pbtxt"


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pair_names(variant: str) -> tuple[str, str]:
    """Return the names of a variant's encoder and decoder."""
    return f"{variant}_encoder", f"{variant}_decoder"


def check_name(name: str) -> str:
    """Return a model name that is safe as a folder name and in a URL.

    Raises:
        ConfigurationError: it is not; path separators, a leading dot and blanks are refused.
    """
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be a model name: letters, digits, '.', '_' and '-' only, a letter or digit first"
        )
    return name
