"""The supervisor: a process between a Python program and its tritonserver, which ends both together.

It runs as a plain script with `python -I -S` (without site-packages, so that it starts in a few milliseconds) and must
not import anything of this package. Its argument is one JSON object (see `Job`). It writes one JSON line to standard
output, `{"pid": 123}` or `{"error": "..."}`. Its exit status is that of tritonserver (128 + N after signal N).

PR_SET_PDEATHSIG on tritonserver alone would not suffice. That signal is sent when the *thread* that forked ends, so a
server that was started in a worker thread would end with the thread. It would also reach tritonserver alone, and not
the stub processes that hold the models. The supervisor works as follows:

- Its standard input is a pipe from the program, which closes when the program ends, even by SIGKILL. A forked child of
  the program may hold the pipe open, so the supervisor watches the parent's process id as well.
- tritonserver leads a process group, which is killed as a whole. The supervisor becomes the parent of orphaned stubs
  (PR_SET_CHILD_SUBREAPER) and ends when the last one has ended.
- When the supervisor itself is killed, PR_SET_PDEATHSIG ends tritonserver (the supervisor has only the main thread),
  and the stubs end when they notice that tritonserver is gone.
- The names of the shared-memory segments have a prefix that belongs to this server. The supervisor unlinks them at the
  end. If it is killed, a lock file beside them tells a later start that nobody uses them any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place of POSIX shared memory, not a temporary file
SHM_FAMILY = "triton_sam_"
LOCK_SUFFIX = "lock"
SCRATCH = Path("/tmp")  # noqa: S108 - Triton's Python backend uses it, whatever TMPDIR says
SECONDS_TO_LOAD_BACKEND = 5.0
POLL_SECONDS = 0.25
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Triton logs this after it has answered the last request. Its next steps (unloading models, joining threads) take 3 to
# 5 s and free nothing that the end of the processes does not free as well.
DRAINED = b"All models are stopped, unloading models"
SECONDS_TO_WRITE_ANSWERS = 0.05


@dataclass(frozen=True)
class Job:
    """The command to run, and the files and shared memory to remove afterwards.

    Attributes:
        command: tritonserver and its arguments.
        log_file: the file that tritonserver's output goes to.
        run_directory: the folder to remove when the program has ended.
        shm_prefix: prefix of the names of the server's shared-memory segments.
        grace_seconds: seconds for which running requests may continue.
        parent_pid: process id of the program.
    """

    command: list[str]
    log_file: str
    run_directory: str
    shm_prefix: str
    grace_seconds: float
    parent_pid: int


def main() -> int:
    """Run tritonserver until it ends, or until the program that started this process ends."""
    job = Job(**json.loads(sys.argv[1]))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wakeup = install_wakeup()
    began = time.time()
    remove_stale_servers()
    lock = hold_lock(job, began)
    try:
        try:
            server = start(job.command, libc)
        except OSError as error:
            say({"error": f"cannot run {job.command[0]}: {error.strerror}"})
            return 127
        say({"pid": server.pid})
        wait_for_an_end(server, job.parent_pid, wakeup)
        end(server, job)
    finally:
        remove_segments(job.shm_prefix)
        remove_scratch(began)
        if lock is not None:
            os.close(lock)
    if os.getppid() != job.parent_pid:  # a program that still runs reads the log before it removes the folder
        shutil.rmtree(job.run_directory, ignore_errors=True)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def say(message: dict[str, object]) -> None:
    """Write one line to the program, which may have ended already."""
    try:
        print(json.dumps(message), flush=True)
    except OSError:
        # The interpreter flushes standard output again at exit, which must not fail on the broken pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def install_wakeup() -> int:
    """Turn SIGTERM, SIGINT and SIGCHLD into bytes on a pipe, and return the reading end of the pipe."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return reader


def start(command: list[str], libc: ctypes.CDLL) -> subprocess.Popen[bytes]:
    """Start tritonserver as the leader of its own process group. Its output goes to this process's standard error."""
    supervisor = os.getpid()

    def before_exec() -> None:
        os.setpgid(0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:  # the supervisor died between fork and prctl, so the signal would never come
            os._exit(1)

    # preexec_fn is safe here: the supervisor has only one thread, so no lock is held that the child would wait for.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, preexec_fn=before_exec)  # noqa: PLW1509


def wait_for_an_end(server: subprocess.Popen[bytes], parent_pid: int, wakeup: int) -> None:
    """Block until the server ends, the program ends or closes the pipe, or SIGTERM or SIGINT arrives."""
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    while server.poll() is None and os.getppid() == parent_pid:
        readable, _, _ = select.select([0, wakeup], [], [], POLL_SECONDS)
        if wakeup in readable and stop_signals.intersection(os.read(wakeup, 64)):
            return
        if 0 in readable and not os.read(0, 64):
            return


def end(server: subprocess.Popen[bytes], job: Job) -> None:
    """Let running requests finish, then kill the process group and wait until its last process has ended."""
    if server.poll() is None:
        offset = size_of(job.log_file)
        server.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + job.grace_seconds
        while server.poll() is None and time.monotonic() < deadline:
            if DRAINED in read_from(job.log_file, offset):
                time.sleep(SECONDS_TO_WRITE_ANSWERS)
                break
            time.sleep(0.01)
    # When the server still runs, it ends by our SIGKILL. That is a clean stop and not a crash.
    stopped_here = server.poll() is None
    kill_group(server.pid)
    server.wait()
    if stopped_here:
        server.returncode = 0
    reap_orphans(server.pid)


def kill_group(group: int) -> None:
    """Send SIGKILL to every process of a group that still runs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def reap_orphans(group: int, seconds: float = 5.0) -> None:
    """Wait for the stubs, which became children of this process when tritonserver died."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            kill_group(group)
            time.sleep(0.005)


def hold_lock(job: Job, began: float) -> int | None:
    """Create a lock file beside the shared-memory segments, and hold its lock until this process ends.

    The file lists what else must be removed. A later start reads it when nobody holds the lock any more.

    Returns:
        The descriptor of the file; None where /dev/shm does not exist.
    """
    import fcntl  # here: Windows, where nothing of this runs, must be able to import this module

    path = SHARED_MEMORY / f"{job.shm_prefix}{LOCK_SUFFIX}"
    try:
        while True:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                os.write(descriptor, json.dumps({"run_directory": job.run_directory, "began": began}).encode())
                return descriptor
            os.close(descriptor)  # another start removed the file before it was locked, so create it again
    except OSError:
        return None


def remove_stale_servers() -> None:
    """Remove the files and segments of servers whose supervisor was killed, that is, whose lock nobody holds."""
    import fcntl  # see hold_lock()

    for lock in SHARED_MEMORY.glob(f"{SHM_FAMILY}*_{LOCK_SUFFIX}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError when that server is alive
            if os.fstat(descriptor).st_uid == os.getuid():  # other users must not tell this process what to remove
                owner = json.loads(os.read(descriptor, 4096))
                shutil.rmtree(owner["run_directory"], ignore_errors=True)
                remove_scratch(owner["began"])
                remove_segments(lock.name[: -len(LOCK_SUFFIX)])
        except (OSError, ValueError, KeyError):
            pass
        finally:
            os.close(descriptor)


def remove_segments(prefix: str) -> None:
    """Unlink every segment of one server, and its lock file."""
    for segment in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            segment.unlink()


def remove_scratch(began: float) -> None:
    """Remove the empty folder that a killed Python backend leaves behind.

    The backend creates the folder at its start, and fills it only for models with a packed Python environment. The name
    of the folder does not identify the server, but the time of its creation does. A folder in use is not empty.
    """
    for folder in SCRATCH.glob("python_env_*"):
        with contextlib.suppress(OSError):
            found = folder.stat()
            if found.st_uid == os.getuid() and began <= found.st_mtime <= began + SECONDS_TO_LOAD_BACKEND:
                folder.rmdir()


def size_of(path: str) -> int:
    """Return the size of a file in bytes; 0 when it cannot be read."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def read_from(path: str, offset: int) -> bytes:
    """Return the bytes of a file from `offset` on; nothing when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
