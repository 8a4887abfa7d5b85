"""A service's folder for uploaded videos, and the removal of folders that killed services left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks, so nothing is removed there
    fcntl = None  # type: ignore[assignment]

PREFIX = "triton-sam-videos-"


class Folder:
    """A new temporary folder, locked as long as this process lives.

    Creating it removes this user's folders that no running service has locked.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            self._descriptor = _lock(self.path)
            if fcntl is None or self._descriptor is not None:
                return
            # Another starting service removed the folder as abandoned before it was locked.

    def new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.path))

    def remove(self) -> None:
        """Remove it with all videos."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(folder: Path) -> int | None:
    """Lock a folder if it still exists and is not locked; return the descriptor that holds the lock, else None."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove_abandoned() -> None:
    if fcntl is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
        descriptor = _lock(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
