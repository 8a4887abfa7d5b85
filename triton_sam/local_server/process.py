"""One run of tritonserver under its supervisor, seen from this program."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from triton_sam.errors import ConfigurationError, LocalServerError
from triton_sam.local_server import supervisor
from triton_sam.local_server.probe import last_errors

LOG_TAIL_BYTES = 64 * 1024
# The supervisor needs no time of its own worth mentioning; this is for a machine that is out of breath.
SECONDS_BEYOND_GRACE = 10.0


class SupervisedTriton:
    """A running tritonserver with its supervisor, its log and the folder that goes with it.

    Args:
        command: tritonserver and its arguments.
        environment: the complete environment to run it in.
        run_directory: a folder that is removed at the end.
        log_path: the file that its output is appended to; it begins ``log_start`` bytes into it.
        shm_prefix: how the names of its shared-memory segments begin.
        grace_seconds: how long running requests may take when it is stopped.

    Raises:
        ConfigurationError: the log cannot be written.
        LocalServerError: the program cannot be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        run_directory: Path,
        log_path: Path,
        shm_prefix: str,
        grace_seconds: float,
    ) -> None:
        self.log_path = log_path
        self.pid = 0
        self._run_directory = run_directory
        self._grace_seconds = grace_seconds
        self._owner = os.getpid()
        self.log_start = 0
        self._final_log: str | None = None
        job = supervisor.Job(
            command=list(command),
            log_file=str(log_path),
            run_directory=str(run_directory),
            shm_prefix=shm_prefix,
            grace_seconds=grace_seconds,
            parent_pid=self._owner,
        )
        # The pipe to the supervisor is closed to stop it. It is not inherited: a program that this one starts
        # does not keep the server alive.
        reader, lifeline_end = os.pipe()
        self._lifeline: int | None = lifeline_end
        with os.fdopen(reader, "rb") as lifeline, self._open_log() as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(vars(job))],
                stdin=lifeline,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C in the terminal is for this program to handle, not for Triton
            )

    def learn_pid(self) -> None:
        """Wait for the supervisor to report the process id of tritonserver, a few milliseconds.

        Raises:
            LocalServerError: tritonserver cannot be run.
        """
        if self._process.stdout is None:  # for the type checker: stdout is a pipe
            return
        with self._process.stdout as answers:
            answer = json.loads(answers.readline() or b'{"error": "the supervisor did not start"}')
        if "error" in answer:
            raise LocalServerError(str(answer["error"]) + self.log_excerpt())
        self.pid = int(answer["pid"])

    @property
    def exit_status(self) -> int | None:
        """The exit status of tritonserver (128 + N after signal N), None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; return the exit status, or None after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End tritonserver, wait until all of it is gone and remove what belonged to it. Safe to call again."""
        if self._owner != os.getpid() or self._final_log is not None:
            return  # a forked child must not stop its parent's server
        self._let_go()
        if self.wait(self._grace_seconds + SECONDS_BEYOND_GRACE) is None:
            self._process.kill()
            self._process.wait()
        self._final_log = self.log
        shutil.rmtree(self._run_directory, ignore_errors=True)

    @property
    def log(self) -> str:
        """The last 64 KiB of what tritonserver wrote, also after the end."""
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
        """The last errors of the log, ready to be appended to a message; "" when there are none."""
        lines = last_errors(self.log)
        return ": " + " / ".join(lines) if lines else ""

    def _let_go(self) -> None:
        """Close the pipe, once: an earlier stop() may have been interrupted while it waited."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _open_log(self) -> IO[bytes]:
        try:
            with contextlib.suppress(FileExistsError):
                self.log_path.parent.mkdir(parents=True)
            log = self.log_path.open("ab")
        except OSError as error:
            self._let_go()
            raise ConfigurationError(f"cannot write the log to {self.log_path}: {error.strerror}") from error
        self.log_start = log.seek(0, os.SEEK_END)
        return log
