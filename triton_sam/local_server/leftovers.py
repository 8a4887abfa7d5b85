"""Removes what a server leaves outside its own folder: shared memory, its lock, Triton's scratch folder, and processes.

The supervisor does this at the end, and a later start does it for a killed supervisor. This file imports only the
standard library (see supervisor.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path

with contextlib.suppress(ImportError):  # on Windows, where no server runs
    import fcntl

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place of POSIX shared memory, not a temporary file
SHM_FAMILY = "triton_sam_"
LOCK_SUFFIX = "lock"
SCRATCH = Path("/tmp")  # noqa: S108 - Triton's Python backend uses it and ignores TMPDIR
SECONDS_TO_LOAD_BACKEND = 5.0


def hold_lock(shm_prefix: str, run_directory: str, began: float) -> int | None:
    """Create a lock file beside the shared-memory segments, and hold its lock until this process ends.

    The file lists the other files to remove. A later start reads it after the lock was released.

    Returns:
        The descriptor of the file; None if /dev/shm does not exist.
    """
    path = SHARED_MEMORY / f"{shm_prefix}{LOCK_SUFFIX}"
    try:
        while True:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                    content = {"run_directory": run_directory, "began": began}
                    # The parent of Triton uses only the standard library.
                    os.write(descriptor, json.dumps(content, allow_nan=False).encode())  # noqa: TID251
                    return descriptor
            except OSError:  # /dev/shm is full, for example
                path.unlink(missing_ok=True)
                os.close(descriptor)
                raise
            os.close(descriptor)  # another start removed the file before it was locked: create it again
    except OSError:
        return None


def is_held(lock: Path) -> bool:
    """Return whether a living supervisor holds a lock file. A process id would not do: it may have been reused."""
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_stale_servers() -> None:
    """Remove the processes, files and segments of servers whose supervisor was killed, which released its lock."""
    for lock in SHARED_MEMORY.glob(f"{SHM_FAMILY}*_{LOCK_SUFFIX}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError while that server runs
            if os.fstat(descriptor).st_uid == os.getuid():  # other users must not choose what this process removes
                owner = json.loads(os.read(descriptor, 1 << 16) or b"{}")
                if not owner:  # a start that ended before it wrote
                    lock.unlink()
                    continue
                end_stubs(owner["run_directory"])
                shutil.rmtree(owner["run_directory"], ignore_errors=True)
                remove_scratch(owner["began"])
                remove_segments(lock.name[: -len(LOCK_SUFFIX)])
        except (OSError, ValueError, KeyError):
            pass
        finally:
            os.close(descriptor)


def end_stubs(run_directory: str) -> None:
    """Kill the processes of a server's models. If one of them waits for a killed Triton, it never ends by itself."""
    for link in Path("/proc").glob("[0-9]*/exe"):
        with contextlib.suppress(OSError):  # a process of another user, or one that has ended
            if link.readlink().is_relative_to(run_directory):
                os.kill(int(link.parent.name), signal.SIGKILL)


def remove_segments(prefix: str, *, but_the_lock: bool = False) -> None:
    """Unlink every segment of one server, and its lock file unless the server restarts."""
    for segment in SHARED_MEMORY.glob(f"{prefix}*"):
        if but_the_lock and segment.name == prefix + LOCK_SUFFIX:
            continue
        with contextlib.suppress(OSError):
            segment.unlink()


def remove_scratch(began: float) -> None:
    """Remove the empty folder that a killed Python backend leaves behind.

    The backend creates the folder when it starts, and fills it only for models with a packed Python environment. The
    folder's name does not identify the server, but its creation time does. A folder in use is not empty.
    """
    for folder in SCRATCH.glob("python_env_*"):
        with contextlib.suppress(OSError):
            found = folder.stat()
            if found.st_uid == os.getuid() and began <= found.st_mtime <= began + SECONDS_TO_LOAD_BACKEND:
                folder.rmdir()
