"""Install the files of an export, all or none, so that a failed export leaves the old model unchanged."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .._common.files import locked
from .config import VERSION
from .folder import version_folders
from .hashes import forget_hashes, record_hashes, restore_hashes

EXTERNAL_DATA_ENDINGS = (".onnx.data", ".onnx_data")
"""Suffixes of external data: of our own exports, and of the published SAM3 files."""

_STAGING = ".export-"
LOCK_NAME = ".install.lock"


@contextlib.contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Provide a temporary folder inside ``folder``, on the same disk. It is always removed at the end.

    If ``folder`` does not exist, it is created with its parents. Folders that are still empty at the end are removed,
    and so are temporary folders of killed processes. A running server ignores the temporary folder, because Triton
    reads only the numeric folders of a model.
    """
    made = _make(folder)
    try:
        for left in folder.glob(f"{_STAGING}*"):
            if left.is_dir():
                _remove_if_left(left)
        temporary = folder / f"{_STAGING}{secrets.token_hex(4)}"
        with locked(_lock_of(temporary)), contextlib.ExitStack() as removal:
            # Twice, in case one of them is interrupted.
            removal.callback(shutil.rmtree, temporary, ignore_errors=True)
            removal.callback(shutil.rmtree, temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
    finally:
        _remove_empty(made)


def _lock_of(temporary: Path) -> Path:
    """Return the lock that a process holds as long as it uses a temporary folder."""
    return temporary.with_name(f"{temporary.name}.lock")


def _remove_if_left(temporary: Path) -> None:
    """Remove a temporary folder whose process was killed."""

    def keep() -> None:
        raise BlockingIOError(f"{temporary} is in use")

    with contextlib.suppress(OSError), locked(_lock_of(temporary), keep) as is_held:
        if is_held:  # without locks, it may be in use
            shutil.rmtree(temporary)


def install(moves: Sequence[tuple[Path, Path]], repository: Path) -> None:
    """Move finished files to their places. If a move fails, undo the moves before it.

    The hashes of all files in version folders are recorded (see `hashes`).

    A lock allows only one process at a time. Otherwise, two concurrent exports could install the encoder of one and
    the decoder of the other.

    Args:
        moves: (finished file, place) pairs; both paths of a pair are on the same disk. The finished files are already
            flushed. If both paths are equal, the file is not moved.
        repository: the folder that contains all places; it must exist.
    """
    weights = [place for _, place in moves if VERSION.fullmatch(place.parent.name) and _is_weight(place)]
    with locked(repository / LOCK_NAME), contextlib.ExitStack() as undo:
        # An interruption leaves files without a hash, which a server loads, instead of files with a wrong one.
        undo.callback(restore_hashes, forget_hashes(weights))
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
        record_hashes(weights)


def _is_weight(file: Path) -> bool:
    """Return whether a version's file has a hash. Programs have none: a new package version may change model.py."""
    return file.suffix != ".py" and not file.name.startswith(".")


def remove_stale_data(places: Iterable[Path]) -> None:
    """Remove the external data of replaced graphs: unused gigabytes."""
    kept = set(places)
    for graph in [place for place in kept if place.suffix == ".onnx"]:
        for file in graph.parent.glob(f"{graph.stem}*"):
            if file.name.endswith(EXTERNAL_DATA_ENDINGS) and file not in kept:
                with contextlib.suppress(OSError):
                    file.unlink()


def newer_version_warning(folders: Iterable[Path], version: int) -> str:
    """Return a one-line warning if Triton would load a newer version than the installed one; else ""."""
    newer = [path for folder in folders for path in version_folders(folder) if int(path.name) > version]
    if not newer:
        return ""
    newest = max(int(path.name) for path in newer)
    remove = shlex.join(["rm", "-r", *map(str, newer)])
    return f"version {version} is not served: Triton serves the newest, {newest}. To serve version {version}: {remove}"


def text_move(name: str, text: str, workspace: Path, folder: Path) -> list[tuple[Path, Path]]:
    """Write a text file to a workspace and return its move, or no move if the folder already has the same text."""
    place = folder / name
    if place.is_file() and place.read_text("utf-8", errors="replace") == text:
        return []
    workspace.mkdir(exist_ok=True)  # it does not exist if nothing was downloaded
    write_flushed(workspace / name, text)
    return [(workspace / name, place)]


def write_flushed(path: Path, text: str) -> None:
    """Write a text file and flush it to the disk."""
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _back_up(place: Path, finished: Path) -> Path | None:
    """Keep the old file under another name in the folder of the finished one; return None if there is no old file."""
    if not place.exists():
        return None
    backup = finished.with_name(finished.name + ".old")
    backup.unlink(missing_ok=True)  # a killed installation may have left one
    try:
        backup.hardlink_to(place)
    except OSError:  # the file system has no hard links
        shutil.copy2(place, backup)
    return backup


def _restore(backup: Path | None, place: Path) -> None:
    if backup is None:
        place.unlink(missing_ok=True)
    else:
        backup.replace(place)
        # Renaming a hard link onto its own file does nothing. That file is still in its place if the move failed.
        backup.unlink(missing_ok=True)


def _make(folder: Path) -> list[Path]:
    """Create a folder and its parents; return those that did not exist, innermost first."""
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
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
