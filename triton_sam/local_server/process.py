"""One run of tritonserver under its supervisor, seen from this program."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from triton_sam._common import strict_json
from triton_sam.errors import ConfigurationError, LocalServerError
from triton_sam.local_server import supervisor
from triton_sam.local_server.probe import last_errors

LOG_TAIL_BYTES = 64 * 1024
SECONDS_BEYOND_GRACE = 60.0
"""Seconds for the supervisor itself, which needs almost none, except on an overloaded machine."""
POLL_SECONDS = 0.02
"""Seconds between two looks whether the server is ready, or has ended."""


class SupervisedTriton:
    """A running tritonserver with its supervisor, its log and its temporary folder.

    The output is appended to the job's log file. It begins at the offset ``log_start``.
    """

    def __init__(self, job: supervisor.Job, environment: Mapping[str, str]) -> None:
        self.log_path = Path(job.log_file)
        self._first_pid = 0
        self._exit_status: int | None = None
        self._final_state: dict[str, Any] | None = None
        self._run_directory = Path(job.run_directory)
        self._grace_seconds = job.grace_seconds
        self._owner = job.parent_pid
        self.log_start = 0
        self._final_log: str | None = None
        # Closing this pipe stops the supervisor. Other child processes do not inherit the pipe, so they do not keep
        # the server alive.
        reader, lifeline_end = os.pipe()
        self._lifelines = [lifeline_end]
        """The descriptor, until one thread removes it to close it."""
        try:
            with os.fdopen(reader, "rb") as lifeline, self._open_log() as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", supervisor.__file__, strict_json.dumps(vars(job))],
                    stdin=lifeline,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=dict(environment),
                    start_new_session=True,  # this program handles Ctrl-C in the terminal, not Triton
                )
        except OSError as error:
            self._close_lifeline()
            raise LocalServerError(f"the supervisor of Triton cannot be started: {error.strerror or error}") from error
        except BaseException:
            self._close_lifeline()
            raise

    def learn_pid(self) -> None:
        """Wait for the supervisor to report the process id of tritonserver, which takes a few milliseconds."""
        if self._process.stdout is None:  # never, but the type checker does not know that stdout is a pipe
            return
        with self._process.stdout as answers:
            answer = json.loads(answers.readline() or b'{"error": "the supervisor did not start"}')
        if "error" in answer:
            raise LocalServerError(str(answer["error"]) + self.log_excerpt())
        self._first_pid = int(answer["pid"])

    @property
    def pid(self) -> int:
        """Process id of tritonserver. It changes when tritonserver is restarted."""
        return int(self._state().get("pid", self._first_pid))

    @property
    def restarts(self) -> int:
        """Number of restarts after tritonserver or one of its models died."""
        return int(self._state().get("restarts", 0))

    @property
    def exit_status(self) -> int | None:
        """Exit status of tritonserver (128 + N after signal N); None while it runs."""
        # Not Popen.poll() and Popen.wait(): if Ctrl-C comes when they have just taken their lock, it stays locked, and
        # stop() would wait forever. This call only looks, and stop() collects the status.
        if self._exit_status is None:
            try:
                found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # it was collected elsewhere, or this is a forked child
                return self._process.returncode or 0
            if found is not None:
                self._exit_status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        return self._exit_status

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end. Return the exit status, or None if the server still runs after `timeout` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self.exit_status is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, left))
        return self.exit_status

    def stop(self) -> None:
        """End tritonserver, wait until all its processes have ended, and remove its files. Further calls do nothing."""
        if self._owner != os.getpid() or self._final_log is not None:
            return  # a forked child must not stop its parent's server
        self._close_lifeline()
        if self.wait(self._grace_seconds + SECONDS_BEYOND_GRACE) is None:
            with contextlib.suppress(ProcessLookupError):  # another thread stopped it just now
                os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._final_log, self._final_state = self.log, self._state()
        shutil.rmtree(self._run_directory, ignore_errors=True)

    @property
    def log(self) -> str:
        """The last 64 KiB of tritonserver's output, also after its end."""
        if self._final_log is not None:
            return self._final_log
        try:
            with self.log_path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self.log_start, end - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def log_excerpt(self) -> str:
        """Return the last errors of the log as a suffix for a message; an empty string without errors."""
        lines = last_errors(self.log)
        return ": " + " / ".join(lines) if lines else ""

    def _state(self) -> dict[str, Any]:
        """Return the supervisor's state of tritonserver, also after its end; {} before its start."""
        return read_state(self._run_directory) if self._final_state is None else self._final_state

    def _close_lifeline(self) -> None:
        """Close the pipe, unless an earlier stop() or another thread did so."""
        # pop() gives the descriptor to only one thread. If two closed it, the second might close a file with the same
        # number that a third thread has just opened.
        with contextlib.suppress(IndexError):
            os.close(self._lifelines.pop())

    def _open_log(self) -> IO[bytes]:
        try:
            with contextlib.suppress(FileExistsError):
                self.log_path.parent.mkdir(parents=True)
            log = self.log_path.open("ab")
        except OSError as error:
            raise ConfigurationError(f"cannot write the log to {self.log_path}: {error.strerror}") from error
        self.log_start = log.seek(0, os.SEEK_END)
        return log


def read_state(run_directory: Path) -> dict[str, Any]:
    """Return the state file of a server; {} if there is none."""
    try:
        state = json.loads((run_directory / supervisor.STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}
