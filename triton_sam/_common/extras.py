"""The command that installs an extra of this project, and the error when one is missing."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
from pathlib import Path

from ..errors import MissingDependencyError

REPOSITORY = "git+https://github.com/triton-sam/triton-sam"


def install(extras: str) -> str:
    """Return the command that installs extras, for example "local,export", from the checkout or from the repository."""
    from .bundle import checkout

    root = checkout()
    if root is None:
        return f'pip install "triton-sam[{extras}] @ {REPOSITORY}"'
    with contextlib.suppress(OSError):  # the working directory may have been removed
        if root == Path.cwd():
            return f'pip install -c constraints.txt -e ".[{extras}]"'
    return f'pip install -c "{root}/constraints.txt" -e "{root}[{extras}]"'


def find_package(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of an installed package; None if it is missing. This imports only its parent packages.

    Namespace packages count as missing because they have no file: a mere folder of this name in the path, or the shared
    package of several distributions (``opentelemetry``). Pass the name of a package inside the latter.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a parent package is missing, or a module without a spec has this name
        return None
    return spec if spec is not None and spec.origin is not None else None


def missing(subject: str, extra: str, error: ImportError, extras: str | None = None) -> MissingDependencyError:
    package = (error.name or str(error)).partition(".")[0]
    return MissingDependencyError(f"{subject} the {extra} extra ({package} is missing): {install(extras or extra)}")
