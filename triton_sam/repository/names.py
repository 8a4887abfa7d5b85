"""The rules for model names, and the names of files and parameters."""

from __future__ import annotations

import re

from ..errors import ConfigurationError

CONFIG_NAME = "config.pbtxt"
CHECKPOINT_KEY = "checkpoint"
"""The parameter of config.pbtxt that marks the demo model for clients."""
FAMILY_KEY = "family"
"""The parameter of config.pbtxt that names a model's family, if several families have the same tensors."""
ALIAS_KEY = "alias_of"
"""The parameter of config.pbtxt with the target of an alias, if the alias is a program instead of an ensemble."""

DECODER_IN_SESSION = "decoder_in_session"
"""The parameter of a session model's config.pbtxt that runs the decoder in its process: true or false."""
DECODER_IN_SESSION_VARIABLE = "TRITON_SAM_DECODER_IN_SESSION"
"""The environment variable that does the same for session models without that parameter: 1, 0 or IF_POSSIBLE."""
IF_POSSIBLE = "if possible"
"""Run the decoder in the session model on a CPU, and otherwise through Triton, without an error."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
VERSION = re.compile(r"[1-9][0-9]*")
"""Matches the name of a version folder."""
VERSION_TO_TRITON = re.compile(r"\s*\+?[1-9].*", re.DOTALL)
"""Matches all names that Triton reads as versions. It reads the leading digits: `2.bak` is 2."""


def check_name(name: str) -> str:
    """Check that a model name is safe as a folder name and in a URL, and return it.

    Raises:
        ConfigurationError: the name is not safe, for example because of a path separator, a leading dot or a space.
    """
    if not NAME.fullmatch(name):
        raise ConfigurationError(name_problem(name))
    return name


def name_problem(name: str) -> str:
    """Return the error message for an invalid name."""
    return f"{name!r} is not a valid model name: use letters, digits, '.', '_' and '-', with a letter or digit first"
