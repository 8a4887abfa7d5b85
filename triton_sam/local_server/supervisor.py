"""The supervisor: the parent process of a tritonserver, which restarts it when it or one of its models dies.

It runs as a plain script with `python -I -S` (without site-packages, to start in a few milliseconds). Its argument is
one JSON object (see `Job`). It writes one JSON line to standard output for the program that started it,
`{"pid": 123}` or `{"error": "..."}`. Its exit status is that of tritonserver (128 + N after signal N).

PR_SET_PDEATHSIG on tritonserver would not suffice. That signal is sent when the *thread* that forked ends, so a server
started in a worker thread would end with the thread. The signal would also reach only tritonserver, not the stub
processes with the models. The supervisor works as follows:

- Its standard input is a pipe from the program, which closes when the program ends, even by SIGKILL. A forked child of
  the program may hold the pipe open, so the supervisor also watches the parent's process id. A container has no
  program of this kind: the supervisor is process 1, and a signal ends it.
- tritonserver leads a process group, which is killed as a whole. The supervisor becomes the parent of orphaned stubs
  (PR_SET_CHILD_SUBREAPER) and ends after the last one.
- When the supervisor is killed, PR_SET_PDEATHSIG ends tritonserver (the supervisor has only the main thread), and the
  stubs end when they detect that tritonserver is gone. A later start kills those that do not.
- The names of the shared-memory segments have a prefix that belongs to this server. The supervisor unlinks them at the
  end. If it is killed, a later start finds its unlocked lock file beside them, and unlinks them.
- When a model loses its process (`stubs`), or tritonserver dies after it was up, the supervisor restarts tritonserver,
  immediately or after a pause (`Restarts`). It also does so on SIGUSR1, for `triton-sam reload`. The file `state.json`
  in the run's folder has the current process ids and the number of restarts.
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
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Empty packages instead of the real ones, whose imports would take most of a second.
    for _name, _folder in (("triton_sam", 1), ("triton_sam.local_server", 0)):
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [str(Path(__file__).resolve().parents[_folder])]

from triton_sam.local_server.leftovers import hold_lock, remove_scratch, remove_segments, remove_stale_servers
from triton_sam.local_server.output import Output, log
from triton_sam.local_server.stubs import StubWatch

POLL_SECONDS = 0.25
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Triton logs the first when it begins to answer: an end before that is a failed start, and an end after it a crash. It
# logs the second when its queues are empty and HTTP clients have their answers, and the third after it has unloaded all
# models. Before release 25.05, gRPC clients have theirs only by then. The steps after the last answer take 3 to 5 s and
# free only resources that the end of the processes also frees.
STARTED = b"Started HTTPService"
DRAINED = b"All models are stopped, unloading models"
UNLOADED = b": Found 0 live models"
SECONDS_TO_WRITE_ANSWERS = 0.05
SECONDS_FOR_OTHER_MODELS = 0.5
"""Seconds for the running requests of other models, after one model was lost."""
ORPHAN_SECONDS = 5.0
"""Maximum seconds until the stubs have ended after tritonserver."""
STATE_FILE = "state.json"
RESTARTS_VARIABLE = "TRITON_SAM_RESTARTS"
"""The environment variable with the number of restarts, for the metrics of session models."""
STATUS_AFTER_GIVING_UP = 1

STOP, RELOAD, ENDED = "stop", "reload", "ended"
STUCK = "the process of a model ended while it started, and Triton does not notice it"


@dataclass(frozen=True)
class Job:
    """The command to run, and the files and shared memory to remove afterwards.

    Attributes:
        log_file: the file with tritonserver's output; "" without one (in a container).
        parent_pid: process id of the program; 0 without one.
        facts: facts about the server for `triton-sam reload`, such as its ports; they are copied to the state file.
    """

    command: list[str]
    log_file: str
    run_directory: str
    shm_prefix: str
    grace_seconds: float
    parent_pid: int
    address: list[Any]
    heal: bool
    facts: dict[str, Any]


class Restarts:
    """Decides whether and when tritonserver restarts.

    The first restart is immediate, later ones follow after pauses that double. After repeated deaths, each within
    `STABLE_SECONDS`, the supervisor gives up, so that Docker, Kubernetes or the user can react.
    """

    STABLE_SECONDS = 300.0
    MOST_IN_A_ROW = 5

    def __init__(self) -> None:
        self.count = 0
        self._in_a_row = 0

    def next_pause(self, seconds_up: float) -> float | None:
        """Return the seconds to wait before the next start; None to give up.

        Args:
            seconds_up: seconds for which the models were ready. The time to load them is excluded, because large models
                take longer than `STABLE_SECONDS` to load.
        """
        self._in_a_row = 1 if seconds_up >= self.STABLE_SECONDS else self._in_a_row + 1
        if self._in_a_row > self.MOST_IN_A_ROW:
            return None
        self.count += 1
        return 0.0 if self._in_a_row == 1 else 2.0 ** (self._in_a_row - 2)


def main() -> int:
    """Run tritonserver until it ends for good, or until the program that started this process ends."""
    job = Job(**json.loads(sys.argv[1]))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    is_own_log = bool(job.log_file) and Path(job.log_file).parent == Path(job.run_directory)
    wakeup, output = install_wakeup(), Output(job.log_file, is_own=is_own_log)
    remove_stale_servers()
    lock = hold_lock(job.shm_prefix, job.run_directory, time.time())
    try:
        status = supervise(job, libc, wakeup, output)
    finally:
        remove_segments(job.shm_prefix)
        if lock is not None:
            os.close(lock)
    if (
        not job.parent_pid or os.getppid() != job.parent_pid
    ):  # a running program reads the log before it removes the folder
        shutil.rmtree(job.run_directory, ignore_errors=True)
    return status


@dataclass(frozen=True)
class Run:
    """One run of tritonserver, after its end.

    Attributes:
        pid: its process id; 0 if it could not be run.
        reason: the result of wait_for_an_end(), or a sentence why it could not be run.
        seconds_up: seconds for which its models were ready.
    """

    pid: int
    reason: str
    returncode: int
    seconds_up: float = 0.0
    was_up: bool = False
    ready: frozenset[str] = frozenset()

    @property
    def status(self) -> int:
        """The exit status as a shell reports it."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


def supervise(job: Job, libc: ctypes.CDLL, wakeup: int, output: Output) -> int:
    """Start tritonserver, and restart it as long as `Restarts` and the signals allow. Return the exit status."""
    restarts = Restarts()
    was_up = has_run = False
    expected: frozenset[str] = frozenset()
    while True:
        run = run_once(job, libc, wakeup, output, restarts.count, expected)
        was_up, reason, status = was_up or run.was_up, run.reason, run.status
        if reason == STOP:
            return 0 if run.returncode == -signal.SIGTERM else status  # it was still starting
        if not run.pid and not (has_run and job.heal):
            say(job, {"error": reason})
            return status
        has_run = True
        if reason == ENDED and not (job.heal and was_up and status):
            return status
        if reason == STUCK and not was_up:
            log(reason)
            return STATUS_AFTER_GIVING_UP
        if reason == ENDED:
            reason = f"tritonserver ended (exit status {status})"
        pause = 0.0 if reason == RELOAD else restarts.next_pause(run.seconds_up)
        if pause is None:
            log(f"{reason}, and so often in a short time that it is not started again")
            return status or STATUS_AFTER_GIVING_UP
        remove_segments(job.shm_prefix, but_the_lock=True)
        if reason == RELOAD:
            expected = frozenset()  # `triton-sam reload` itself reports the models that fail to load
            log("Triton starts again, to load its models again")
        else:
            expected = expected or run.ready
            log(f"{reason}: Triton starts again{f' after {pause:g} s' if pause else ''} (restart {restarts.count})")
        write_state(job, run.pid, restarts.count)
        if must_stop_within(pause, job, wakeup, output):
            return 0


def run_once(job: Job, libc: ctypes.CDLL, wakeup: int, output: Output, restarts: int, expected: frozenset[str]) -> Run:
    """Start tritonserver, wait until it ends or should not continue, and end it.

    Args:
        expected: models that were ready in an earlier run. If one of them fails to load, this run should not continue.
    """
    output.remember_place()
    began = time.time()
    try:
        server = start(job.command, libc, output, restarts)
    except OSError as error:
        return Run(0, f"cannot run {job.command[0]}: {error.strerror}", 127)
    watch = StubWatch(server.pid, (str(job.address[0]), int(job.address[1])), expected)
    write_state(job, server.pid, restarts)
    say(job, {"pid": server.pid})
    reason = wait_for_an_end(server, job, watch, wakeup, output)
    was_up = watch.is_up or output.has_said(STARTED)
    seconds_up = time.monotonic() - watch.up_since if watch.is_up else 0.0
    is_lost = reason not in (STOP, RELOAD, ENDED)
    grace = min(job.grace_seconds, SECONDS_FOR_OTHER_MODELS) if is_lost else job.grace_seconds
    end(server, output, grace, job.facts["ports"]["grpc"])
    remove_scratch(began)
    return Run(server.pid, reason, server.returncode, seconds_up, was_up, frozenset(watch.ready))


def write_state(job: Job, pid: int, restarts: int) -> None:
    """Write the process ids and the number of restarts to the state file, atomically."""
    path = Path(job.run_directory) / STATE_FILE
    completes = "--disable-auto-complete-config" not in job.command
    processes = {"supervisor": os.getpid(), "pid": pid, "restarts": restarts, "completes": completes}
    state = {**job.facts, "address": job.address, "log": job.log_file, **processes}
    with contextlib.suppress(OSError):  # only `triton-sam reload` and LocalServer.pid need it
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(state, allow_nan=False), encoding="utf-8")  # noqa: TID251 - no package here
        temporary.replace(path)


def say(job: Job, message: dict[str, object]) -> None:
    """Write one line to the program, which may have ended. Without a program, log an error."""
    if not job.parent_pid:
        if "error" in message:
            log(str(message["error"]))
        return
    try:
        print(json.dumps(message, allow_nan=False), flush=True)  # noqa: TID251
    except OSError:
        # The interpreter flushes standard output again at exit, which must not fail on the broken pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def install_wakeup() -> int:
    """Write a byte to a pipe for each relevant signal, and return the reading end of the pipe."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return reader


def start(command: list[str], libc: ctypes.CDLL, output: Output, restarts: int) -> subprocess.Popen[bytes]:
    """Start tritonserver as the leader of its own process group."""
    supervisor = os.getpid()

    def before_exec() -> None:
        os.setpgid(0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:  # the supervisor died between fork and prctl: no signal will come
            os._exit(1)

    # preexec_fn is safe here: the supervisor has only one thread, so the child cannot wait for a lock.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output.writer,
        stderr=output.writer,
        preexec_fn=before_exec,  # noqa: PLW1509
        env={**os.environ, RESTARTS_VARIABLE: str(restarts)},
    )


def wait_for_an_end(server: subprocess.Popen[bytes], job: Job, watch: StubWatch, wakeup: int, output: Output) -> str:
    """Block until the server ends or must be stopped.

    Returns:
        ENDED, RELOAD after SIGUSR1, a sentence about a model that lost its process or failed to load, or STOP: the
        program has ended or has closed the pipe, or SIGTERM or SIGINT arrived.
    """
    while server.poll() is None:
        asked = next_order(POLL_SECONDS, job, wakeup, output)
        if asked:
            return asked
        reap_others(server.pid)
        lost = watch.lost_model()
        if watch.is_stuck():
            return STUCK
        if lost and job.heal:
            return f"the process of model {lost} is gone, perhaps for lack of memory"
        if watch.unloadable and job.heal:
            return f"model {watch.unloadable} was ready before and did not load now"
        output.limit()
    return ENDED


def must_stop_within(seconds: float, job: Job, wakeup: int, output: Output) -> bool:
    """Wait, and return whether an order to stop has arrived."""
    deadline = time.monotonic() + seconds
    while True:
        if next_order(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())), job, wakeup, output) == STOP:
            return True
        if time.monotonic() >= deadline:
            return False


def next_order(seconds: float, job: Job, wakeup: int, output: Output) -> str:
    """Wait at most `seconds` for a signal or the end of the program. Return STOP, RELOAD, or "" for neither."""
    if job.parent_pid and os.getppid() != job.parent_pid:
        return STOP
    sources = [wakeup, *([0] if job.parent_pid else []), *([] if output.pipe is None else [output.pipe])]
    readable, _, _ = select.select(sources, [], [], seconds)
    output.copy()
    signals = set(os.read(wakeup, 64)) if wakeup in readable else set()
    if signals & {signal.SIGTERM, signal.SIGINT} or (0 in readable and not os.read(0, 64)):
        return STOP
    return RELOAD if signal.SIGUSR1 in signals else ""


def reap_others(server_pid: int) -> None:
    """Reap orphans that have ended. As process 1 of a container, this process inherits every orphan."""
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == server_pid:
                return
            os.waitpid(found.si_pid, 0)


def end(server: subprocess.Popen[bytes], output: Output, grace_seconds: float, grpc_port: int) -> None:
    """Let running requests finish, then kill the process group and wait until its last process has ended."""
    was_running = server.poll() is None
    if was_running:
        output.remember_place()
        server.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while server.poll() is None and time.monotonic() < deadline:
            if output.has_said(DRAINED) and (output.has_said(UNLOADED) or not has_clients(grpc_port)):
                time.sleep(SECONDS_TO_WRITE_ANSWERS)
                break
            time.sleep(0.01)
    # If the server still runs, our SIGKILL ends it. That is a clean stop, not a crash, and so is an end without models:
    # another server's clean-up may have removed the scratch folder, and the Python backend then aborts.
    stopped_here = server.poll() is None or (was_running and output.has_said(UNLOADED))
    kill_group(server.pid)
    server.wait()
    output.copy()
    if stopped_here:
        server.returncode = 0
    reap_orphans(server.pid)


def has_clients(port: int) -> bool:
    """Return whether a connection to a TCP port of this machine is established."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(table).read_text(encoding="ascii").splitlines()]
            if any(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows):
                return True
    return False


def kill_group(group: int) -> None:
    """Send SIGKILL to every process of a group that still runs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def reap_orphans(group: int) -> None:
    """Wait for the stubs, which became children of this process when tritonserver ended."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            kill_group(group)
            time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main())
