"""Extras of this project: the command that installs one, and the error where one is missing."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..errors import MissingDependencyError
from .bundle import checkout


def install(extras: str) -> str:
    """Return the command that installs extras, for example "local,export", from where this package came from."""
    root = checkout()
    if root is None:
        return f'pip install "triton-sam[{extras}]"'
    with contextlib.suppress(OSError):  # a working directory that is gone
        if root == Path.cwd():
            return f'pip install -c constraints.txt -e ".[{extras}]"'
    return f'pip install -c "{root}/constraints.txt" -e "{root}[{extras}]"'


def missing(who: str, extra: str, error: ImportError, extras: str | None = None) -> MissingDependencyError:
    """Return the error for a package that cannot be imported.

    Args:
        who: what needs it, with its verb: "the plots need".
        extra: the extra that brings it.
        error: of the import.
        extras: what to install; None: that extra.
    """
    package = (error.name or str(error)).partition(".")[0]
    return MissingDependencyError(f"{who} the {extra} extra ({package} is missing): {install(extras or extra)}")
