"""The process between a Python program and its tritonserver: it outlives neither of them.

Run as a plain script with `python -I -S` (no site-packages, so that it is up in a few milliseconds); it must
not import anything of this package. Its argument is one JSON object (see `Job`). On standard output it writes
one JSON line, `{"pid": 123}` or `{"error": "..."}`; its exit status is tritonserver's (128 + N after signal N).

Why a process and not PR_SET_PDEATHSIG on tritonserver: that signal fires when the *thread* that forked ends, so
a server started in a worker thread would die with it, and it reaches tritonserver alone, never the stub
processes that hold the models. Here:

- standard input is a pipe from the program. It closes when the program ends, however it ends (also SIGKILL).
  A child that the program forked may hold the pipe open, so the parent's process id is looked at as well.
- tritonserver leads a process group, which is killed as a whole. Orphaned stubs are re-parented to this process
  (PR_SET_CHILD_SUBREAPER), which leaves when the last one has gone.
- should this process be killed itself, PR_SET_PDEATHSIG takes tritonserver along (the only thread here is the
  main one), and the stubs leave when they miss tritonserver.
- the shared-memory segments carry a prefix of this server's own and are unlinked at the end. A lock file beside
  them tells a later start that they are stale should nobody have been left to do so.
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

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lives, not a temporary file
SHM_FAMILY = "triton_sam_"
LOCK_SUFFIX = "lock"
SCRATCH = Path("/tmp")  # noqa: S108 - fixed in Triton's Python backend, whatever TMPDIR says
SECONDS_TO_LOAD_BACKEND = 5.0
POLL_SECONDS = 0.25
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Triton says this when the last request has been answered. What follows (unloading, joining threads) takes 3 to
# 5 s in steps of a second and frees nothing that the end of the processes does not free as well.
DRAINED = b"All models are stopped, unloading models"
SECONDS_TO_WRITE_ANSWERS = 0.05


@dataclass(frozen=True)
class Job:
    """What to run and what to remove afterwards."""

    command: list[str]
    log_file: str
    run_directory: str
    shm_prefix: str
    grace_seconds: float
    parent_pid: int


def main() -> int:
    """Run tritonserver until it ends or until the program that asked for it does."""
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
    if os.getppid() != job.parent_pid:  # otherwise the program still wants to read the log
        shutil.rmtree(job.run_directory, ignore_errors=True)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def say(message: dict[str, object]) -> None:
    """Write one line to the program, which may have gone already."""
    try:
        print(json.dumps(message), flush=True)
    except OSError:
        # The descriptor stays broken: keep the interpreter from flushing it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def install_wakeup() -> int:
    """Turn SIGTERM, SIGINT and SIGCHLD into bytes on a pipe; return its reading end."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return reader


def start(command: list[str], libc: ctypes.CDLL) -> subprocess.Popen[bytes]:
    """Start tritonserver as the leader of its own process group, its output going to this process's stderr."""
    supervisor = os.getpid()

    def before_exec() -> None:
        os.setpgid(0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:  # it died between fork and prctl: nobody would send the signal
            os._exit(1)

    # The supervisor has one thread: nothing can hold a lock that the child would wait for.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, preexec_fn=before_exec)  # noqa: PLW1509


def wait_for_an_end(server: subprocess.Popen[bytes], parent_pid: int, wakeup: int) -> None:
    """Block until the server has died, the program has gone or either it or a signal says stop."""
    told = {signal.SIGTERM, signal.SIGINT}
    while server.poll() is None and os.getppid() == parent_pid:
        readable, _, _ = select.select([0, wakeup], [], [], POLL_SECONDS)
        if wakeup in readable and told.intersection(os.read(wakeup, 64)):
            return
        if 0 in readable and not os.read(0, 64):
            return


def end(server: subprocess.Popen[bytes], job: Job) -> None:
    """Let running requests finish, then kill the process group and wait until the last of it has gone."""
    if server.poll() is None:
        offset = size_of(job.log_file)
        server.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + job.grace_seconds
        while server.poll() is None and time.monotonic() < deadline:
            if DRAINED in read_from(job.log_file, offset):
                time.sleep(SECONDS_TO_WRITE_ANSWERS)
                break
            time.sleep(0.01)
    # After SIGTERM, the signal that ends it is ours: that is a clean stop, not a crash.
    stopped_here = server.poll() is None
    kill_group(server.pid)
    server.wait()
    if stopped_here:
        server.returncode = 0
    reap_orphans(server.pid)


def kill_group(group: int) -> None:
    """Send SIGKILL to whatever is left of a process group."""
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
    """Lock a file among the segments for as long as this process lives; None where there is no /dev/shm.

    It says what else there is to remove, for the start that finds it without an owner.
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
            os.close(descriptor)  # another start took it for stale in the moment before the lock: once more
    except OSError:
        return None


def remove_stale_servers() -> None:
    """Remove what servers left behind whose supervisor was killed: those whose lock nobody holds."""
    import fcntl  # see hold_lock()

    for lock in SHARED_MEMORY.glob(f"{SHM_FAMILY}*_{LOCK_SUFFIX}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError: that server is alive
            if os.fstat(descriptor).st_uid == os.getuid():  # nobody else tells this process what to remove
                left = json.loads(os.read(descriptor, 4096))
                shutil.rmtree(left["run_directory"], ignore_errors=True)
                remove_scratch(left["began"])
                remove_segments(lock.name[: -len(LOCK_SUFFIX)])
        except (OSError, ValueError, KeyError):
            pass
        finally:
            os.close(descriptor)


def remove_segments(prefix: str) -> None:
    """Unlink every segment of one server, its lock file included."""
    for segment in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            segment.unlink()


def remove_scratch(began: float) -> None:
    """Remove the empty folder that a killed Python backend leaves behind.

    It makes one at its start and fills it only for models that bring a packed Python environment. Its name
    does not tell whose it is: the moment does, and a folder that is in use is not empty.
    """
    for folder in SCRATCH.glob("python_env_*"):
        with contextlib.suppress(OSError):
            found = folder.stat()
            if found.st_uid == os.getuid() and began <= found.st_mtime <= began + SECONDS_TO_LOAD_BACKEND:
                folder.rmdir()


def size_of(path: str) -> int:
    """Size of a file in bytes, 0 when it cannot be read."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def read_from(path: str, offset: int) -> bytes:
    """What was appended to a file since it had `offset` bytes."""
    try:
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
