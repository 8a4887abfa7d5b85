"""Write files so that a reader sees the old content or the new one, never half of it; one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of an empty temporary file beside ``path``; it takes the place of ``path`` when the block ends.

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
        yield wanted
        return
    final = Path(os.path.realpath(wanted))
    temporary = final.with_name(f".{final.stem[:64]}.{secrets.token_hex(4)}.tmp{final.suffix}")
    try:
        # Not tempfile.mkstemp: its files are private to the user, these get the permissions that open() would give.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        move_into_place(temporary, final)
    except OSError as error:
        if error.filename == os.fspath(temporary):  # nobody knows that name
            error.filename, error.filename2 = os.fspath(wanted), None
        raise
    finally:
        with contextlib.suppress(OSError):  # gone after the rename; and the error that is on its way matters more
            temporary.unlink()


def atomic_write(path: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` to ``path``; see atomic_path().

    Raises:
        OSError: see atomic_path(); the old file is intact then.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def move_into_place(temporary: Path, final: Path) -> None:
    """Rename a finished file to its final name in the same directory, replacing what is there.

    The content is brought to the disk before: a power cut right after the rename could leave an empty file otherwise.
    """
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(final)


@contextlib.contextmanager
def locked(lock: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file, which is there meanwhile, after waiting for whoever holds it; ``waits`` is called before that.

    Raises:
        OSError: the file cannot be written.
    """
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _flock(descriptor, waits)
            # The last holder removes the file: a lock on a removed file, or on an older one, locks nothing.
            if lock.exists() and os.path.samestat(os.fstat(descriptor), lock.stat()):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _flock(descriptor: int, waits: Callable[[], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waits()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:  # some network file systems have no locks; better unlocked than not at all
            raise
