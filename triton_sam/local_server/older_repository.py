"""Add missing files to the model repository of an earlier version before a server reads it."""

from __future__ import annotations

import sys
from pathlib import Path

from triton_sam.errors import MissingDependencyError
from triton_sam.sessions.configs import complete_repository


def complete(repository: Path) -> None:
    """Write the missing files of an older repository, and print their models to stderr.

    A read-only repository, as in a container, is served unchanged, and one line of advice is printed.
    """
    if not repository.is_dir():
        return
    try:
        written = complete_repository(repository)
    except (OSError, MissingDependencyError) as error:
        print(
            f"triton-sam: {repository} lacks files, and they cannot be written here ({error}): "
            f"run `triton-sam doctor --fix --model-repository DIR` where it can be written",
            file=sys.stderr,
        )
        return
    if written:
        names = ", ".join(sorted({path.relative_to(repository).parts[0] for path in written}))
        print(f"triton-sam: {repository} lacked files of {names}; they are written", file=sys.stderr)
