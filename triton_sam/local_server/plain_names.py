"""Plain names for paths that Triton's Python backend does not support.

The backend starts the process of a model with an unquoted bash command, and Python in that process decodes paths as
ASCII. So a space or an accented letter in the path of a package, of Python itself or of the model repository would end
the process. Triton gets links with plain names instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

from triton_sam.errors import LocalServerError

_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
_OTHER_PARENTS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - parents of mkdtemp(), if $TMPDIR is not plain


def is_plain(path: str | os.PathLike[str]) -> bool:
    """Return whether Triton's Python backend supports all characters of a path."""
    return _PLAIN.fullmatch(os.fspath(path)) is not None


def make_run_directory() -> Path:
    """Create a temporary folder for a run, with a plain path."""
    for parent in (tempfile.gettempdir(), *_OTHER_PARENTS):
        with contextlib.suppress(OSError):
            if is_plain(parent):
                return Path(tempfile.mkdtemp(prefix="triton-sam-", dir=parent))
    raise LocalServerError(
        f"Triton needs a temporary folder whose path has only letters without accents, digits and . _ + -, "
        f"not {tempfile.gettempdir()}: set TMPDIR"
    )


class PlainNames:
    """Links with plain names in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._links: dict[Path, Path] = {}

    def of(self, path: Path) -> Path:
        """Return the path itself if it is plain, otherwise the path of a link to it."""
        if is_plain(path):
            return path
        if path not in self._links:
            self._folder.mkdir(exist_ok=True)
            link = self._folder / str(len(self._links))
            link.symlink_to(path)
            self._links[path] = link
        return self._links[path]
