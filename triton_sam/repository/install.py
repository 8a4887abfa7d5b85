"""Put the files of an export in place, all or none, so that a failed export leaves the old model as it was."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .._common.files import locked
from .folder import version_folders

EXTERNAL_DATA_ENDINGS = (".onnx.data", ".onnx_data")
"""Of our own exports, and of the published SAM3 files."""

LOCK_NAME = ".install.lock"


@contextlib.contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Give a temporary folder inside ``folder`` (same disk), removed at the end whatever happens.

    ``folder`` is made when missing, and removed again with the parents that were made for it if it ends up empty.
    Triton looks at numeric folders inside a model only, so a running server does not see the temporary one.
    """
    made = _make(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder, ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
    finally:
        _remove_empty(made)


def install(moves: Sequence[tuple[Path, Path]], repository: Path) -> None:
    """Move finished files to their places; when one move fails, undo those before it.

    One process at a time does so: of two exports at once, the encoder of one never meets the decoder of the other.

    Args:
        moves: (finished file, place) pairs, each pair on one disk. The finished files are flushed already; one that is
            its own place stays there.
        repository: folder that holds all places; it is there.

    Raises:
        OSError: a move failed; every place is as it was.
    """
    with locked(repository / LOCK_NAME), contextlib.ExitStack() as undo:
        for finished, place in moves:
            if finished == place:
                continue
            undo.callback(_remove_empty, _make(place.parent))
            undo.callback(_restore, _back_up(place, finished), place)
            finished.replace(place)
        for folder in {place.parent for _, place in moves}:
            _flush_folder(folder)
        undo.pop_all()
        remove_stale_data([place for _, place in moves])


def remove_stale_data(places: Iterable[Path]) -> None:
    """Remove external data of graphs that were replaced: gigabytes that nothing names any more.

    Args:
        places: all files that were installed.
    """
    kept = set(places)
    for graph in [place for place in kept if place.suffix == ".onnx"]:
        for file in graph.parent.glob(f"{graph.stem}*"):
            if file.name.endswith(EXTERNAL_DATA_ENDINGS) and file not in kept:
                with contextlib.suppress(OSError):
                    file.unlink()


def not_served(folders: Iterable[Path], version: int) -> str:
    """Return a line on newer versions beside an installed one, which Triton serves instead; empty when there are none.

    Args:
        folders: of the models, in the repository.
        version: what was installed in each.
    """
    newer = [path for folder in folders for path in version_folders(folder) if int(path.name) > version]
    if not newer:
        return ""
    newest = max(int(path.name) for path in newer)
    remove = shlex.join(["rm", "-r", *map(str, newer)])
    return f"version {version} is not served: Triton takes the newest, {newest}. To go back to {version}: {remove}"


def write_flushed(path: Path, text: str) -> None:
    """Write a text file and flush it to the disk."""
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _back_up(place: Path, finished: Path) -> Path | None:
    """Keep the old file under a second name beside the finished one; None when there is no old file."""
    if not place.exists():
        return None
    backup = finished.with_name(finished.name + ".old")
    try:
        backup.hardlink_to(place)
    except OSError:  # a file system without hard links
        shutil.copy2(place, backup)
    return backup


def _restore(backup: Path | None, place: Path) -> None:
    if backup is None:
        place.unlink(missing_ok=True)
    else:
        backup.replace(place)


def _make(folder: Path) -> list[Path]:
    """Make a folder with its parents; return those that were missing, innermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
    return missing


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
