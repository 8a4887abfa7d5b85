"""The command that installs an extra of this project, and the error when one is missing."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..errors import MissingDependencyError
from .bundle import checkout


def install(extras: str) -> str:
    """Return the command that installs extras, for example "local,export", from the checkout or from PyPI."""
    root = checkout()
    if root is None:
        return f'pip install "triton-sam[{extras}]"'
    with contextlib.suppress(OSError):  # the working directory may have been removed
        if root == Path.cwd():
            return f'pip install -c constraints.txt -e ".[{extras}]"'
    return f'pip install -c "{root}/constraints.txt" -e "{root}[{extras}]"'


def missing(subject: str, extra: str, error: ImportError, extras: str | None = None) -> MissingDependencyError:
    """Return the error for a package that cannot be imported.

    Args:
        subject: the feature that needs the package, with its verb: "the plots need".
        extra: the extra that contains the package.
        error: the error of the import.
        extras: the extras to install; None: only ``extra``.
    """
    package = (error.name or str(error)).partition(".")[0]
    return MissingDependencyError(f"{subject} the {extra} extra ({package} is missing): {install(extras or extra)}")
