"""Restart a supervised local server, so that it reloads its models: the implementation of `triton-sam reload`.

A server that refuses requests to load models loads them only when it starts. Its supervisor restarts it on SIGUSR1.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.errors import LocalServerError, RepositoryError, ServerTimeoutError
from triton_sam.local_server.closed import link_models, unlink_model
from triton_sam.local_server.leftovers import LOCK_SUFFIX, SHARED_MEMORY, SHM_FAMILY, is_held
from triton_sam.local_server.output import read_from, size_of
from triton_sam.local_server.probe import POLL_TIMEOUT, Probe, explain, failed_models
from triton_sam.local_server.process import read_state
from triton_sam.local_server.settings import needs_no_completion
from triton_sam.repository.hashes import damaged_models
from triton_sam.repository.selection import select_models

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class SupervisedServer:
    """A server of this user on this machine with its supervisor. load_again() is for servers without administration."""

    run_directory: Path
    state: dict[str, Any]

    @property
    def repository(self) -> Path:
        return Path(self.state["repository"])

    def load_again(self, names: Sequence[str], timeout: float) -> dict[str, str]:
        """Restart the server with its current models and these, and wait until all are ready.

        The files are checked first: missing or damaged weights raise an error without a restart.

        Returns:
            The versions of all models by name.
        """
        links = Path(self.state["links"])
        served = sorted(path.name for path in links.iterdir())
        folders = select_models(self.repository, [*served, *names])
        damage = damaged_models(folders, verify=self.state.get("verify"))
        if damage:
            raise RepositoryError("; ".join(f"{name}: {reason}" for name, reason in sorted(damage.items())))
        added = [folder for folder in folders if folder.name not in served]
        for folder in added:
            if not (self.state.get("completes", True) or needs_no_completion(folder)):
                raise RepositoryError(
                    f"{folder.path}/config.pbtxt must name the backend and all inputs and outputs, because the server "
                    "was started without models that lack them: complete it, or restart the server"
                )
        try:
            link_models(links, [folder.path for folder in folders])
            # The supervisor may have restarted Triton while the files were checked.
            now = find_closed_server(self.state["ports"]["http"])
            if now is None or now.run_directory != self.run_directory:
                raise LocalServerError("the server has ended: see its log")
            log_start = size_of(now.log)
            os.kill(now.state["supervisor"], signal.SIGUSR1)
            return now.wait_until_ready([folder.name for folder in folders], log_start, time.monotonic() + timeout)
        except LocalServerError:
            # A container ends when a model fails to load, and would end again after each restart.
            for folder in added:
                unlink_model(links / folder.name)
            raise

    @property
    def log(self) -> str:
        """The server's log file; "" for a container, which logs to standard error."""
        return str(self.state.get("log", ""))

    def wait_until_ready(self, wanted: Sequence[str], log_start: int, deadline: float) -> dict[str, str]:
        """Wait for a restart with these models; see load_again()."""
        host, port = self.state["address"]
        probe = Probe(str(host), int(port), POLL_TIMEOUT)
        while time.monotonic() < deadline:
            if not _is_alive(self.state["supervisor"]):
                raise LocalServerError("the server ended while it started again: see its log")
            state = read_state(self.run_directory)
            if state.get("restarts", 0) > self.state["restarts"]:
                raise LocalServerError("Triton ended while it loaded the models: see the server's log")
            index = probe.index() if state.get("pid", self.state["pid"]) != self.state["pid"] else None
            if index is not None:
                log = read_from(self.log, log_start).decode(errors="replace")
                for name, reason in explain(failed_models(index, wanted), log, self.repository).items():
                    raise LocalServerError(f"model {name!r} failed to load: {reason}")
                return {row["name"]: row.get("version", "") for row in index if row.get("state") == "READY"}
            time.sleep(POLL_SECONDS)
        raise ServerTimeoutError("the server has not loaded its models in time; it is still loading them")


def find_closed_server(port: int) -> SupervisedServer | None:
    """Return this user's supervised server that listens on a local port and refuses requests to load models."""
    for lock in sorted(SHARED_MEMORY.glob(f"{SHM_FAMILY}*_{LOCK_SUFFIX}")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if lock.stat().st_uid == os.getuid() and is_held(lock):
                run_directory = Path(json.loads(lock.read_text("ascii"))["run_directory"])
                state = read_state(run_directory)
                if state["links"] and port in state["ports"].values() and _is_alive(state["supervisor"]):
                    return SupervisedServer(run_directory, state)
    return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
