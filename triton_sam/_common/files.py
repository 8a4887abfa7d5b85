"""Writes files atomically, so that readers see either the old or the new content, and locks files for one writer."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BLOCK = 1 << 20
_SECONDS_FOR_READERS = 1.0 if os.name == "nt" else 0.0
"""Seconds to retry on Windows, which cannot replace a file while another process, such as a virus scanner, reads it."""


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of an empty temporary file beside ``path``; it replaces ``path`` when the block ends.

    When the block raises, the temporary file is removed and ``path`` stays as it was. The temporary name keeps the
    suffix, for writers that choose the format by it. A symbolic link stays a link: its target is replaced. Devices and
    pipes such as /dev/null cannot be replaced and are written to directly.

    Args:
        path: file to write; its directory exists.

    Raises:
        OSError: the directory is missing or may not be written to, the disk is full, ``path`` is a directory.

    Examples:
        >>> with atomic_path("model.onnx") as temporary:
        ...     temporary.write_bytes(content)
    """
    wanted = Path(path)
    if wanted.exists() and not (wanted.is_file() or wanted.is_dir()):
        try:
            yield wanted
        except OSError as error:
            error.filename = error.filename or os.fspath(wanted)
            raise
        return
    final = Path(os.path.realpath(wanted))
    temporary = final.with_name(f".{final.stem[:32]}.{secrets.token_hex(4)}.tmp{final.suffix}")
    try:
        # Not tempfile.mkstemp, whose files only the user can read: these get the same permissions as with open().
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        move_into_place(temporary, final)
    except OSError as error:
        # Name the user's file, not the temporary one; the error of a full disk names no file.
        if error.filename == os.fspath(temporary) or (error.filename is None and error.errno in _DISK_ERRORS):
            error.filename, error.filename2 = os.fspath(wanted), None
        raise
    finally:
        with contextlib.suppress(OSError):  # it is gone after the rename, and an earlier error matters more
            temporary.unlink()


def atomic_write(path: str | os.PathLike[str], content: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def hash_file(path: Path, digest: Any = None) -> str:
    """Return the hash of a file in hexadecimal: its SHA-256, or the hash of a new hash object."""
    digest = hashlib.sha256() if digest is None else digest
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return str(digest.hexdigest())


def move_into_place(temporary: Path, final: Path) -> None:
    """Rename a finished file to its final name in the same directory, replacing an existing file.

    The content is flushed to the disk first. Otherwise, a power failure after the rename could leave an empty file.
    """
    descriptor = os.open(temporary, os.O_RDWR)  # Windows refuses fsync() of a read-only file
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _replace(temporary, final)


def _replace(temporary: Path, final: Path) -> None:
    deadline = time.monotonic() + _SECONDS_FOR_READERS
    while True:
        try:
            temporary.replace(final)
        except PermissionError:
            if time.monotonic() >= deadline or final.is_dir():
                raise
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def locked(lock: Path, waits: Callable[[], None] = lambda: None, patience: float = 0.0) -> Iterator[bool]:
    """Hold a lock while the block runs. If another process holds it, call ``waits`` and wait for the lock.

    The file ``lock`` exists only while the lock is held. A file that a killed process left behind does not block.

    Yields:
        Whether the lock is held. On network file systems without locks, the block runs without one.
    """
    from filelock import (
        FileLock,
        Timeout,
    )  # imported here because it imports asyncio and sqlite3, which clients do not need

    # Other users of a shared folder must be able to open a file that a killed process left behind.
    held = FileLock(lock, mode=0o666, fallback_to_soft=False)
    try:
        try:
            held.acquire(timeout=patience)
        except Timeout:
            waits()
            held.acquire()
    except OSError as error:
        if error.errno not in _NO_LOCKS:  # some network file systems have no locks: continue without
            raise
    try:
        yield held.is_locked
    finally:
        if os.name != "nt":  # on Windows, only release() can remove the file
            with contextlib.suppress(OSError):
                lock.unlink()  # before the release, so that waiting processes create a new file
        held.release()
