"""Names of models and of their files."""

from __future__ import annotations

import re

from ..errors import ConfigurationError
from ..families import pair_names

__all__ = ["CONFIG_NAME", "NAME", "check_name", "pair_names"]

CONFIG_NAME = "config.pbtxt"


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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
