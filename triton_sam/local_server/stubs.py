"""Watch the processes of models, because older releases of Triton report a model as ready after its process was killed.

Triton runs each instance of a Python model or a Python-based backend in a stub process. The kernel may kill a stub
when memory is short. Triton then answers every later request to the model with an error. Models of other backends run
in tritonserver itself, and end with it.

A stub also ends when its model is unloaded, so the watch checks whether Triton still reports the model as ready.
This file imports only the standard library (see supervisor.py).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_CONFIRM = 0.2
SECONDS_BETWEEN_SCANS = 5.0
"""A scan reads the whole process table, to find the stubs of newly loaded models."""
SECONDS_TO_ANSWER = 1.0
SECONDS_TO_NOTICE = 3.0
"""Triton detects within a second that a process ended while it loaded its model. It waits minutes for a process that
ended earlier, because Python could not start."""
PROCESSES = Path("/proc")
STUB = b"triton_python_backend_stub"
NOBODY = 0


@dataclass(frozen=True)
class Stub:
    """A stub process and the name of its model."""

    pid: int
    model: str


class StubWatch:
    """Finds models that Triton reports as ready although one of their processes is gone.

    Attributes:
        is_up: whether Triton has answered, which it does after all models are loaded or have failed.
        up_since: the time of the first answer, in seconds of the monotonic clock.
        unloadable: one of the expected models that failed to load; "" if there is none.
    """

    def __init__(self, server_pid: int, address: tuple[str, int], expected: frozenset[str] = frozenset()) -> None:
        self.is_up = False
        self.up_since = 0.0
        self.ready: set[str] = set()
        self.unloadable = ""
        self._expected = expected
        self._server_pid = server_pid
        self._address = address
        self._stubs: set[Stub] = set()
        self._suspect = ""
        self._ended: dict[int, float] = {}
        self._next_look = self._next_scan = 0.0

    def lost_model(self) -> str:
        """Return the name of a model that lost a process; "" if there is none, or if the next check is not due.

        A model must be found in two checks in a row.
        """
        now = time.monotonic()
        if now < self._next_look:
            return ""
        # While models load, check and scan at each call, so that a stub is recorded before it can be lost.
        self._next_look = now + (SECONDS_BETWEEN_LOOKS if self.is_up else 0.0)
        if now >= self._next_scan:
            self._next_scan = now + (SECONDS_BETWEEN_SCANS if self.is_up else 0.0)
            self._stubs |= find_stubs(self._server_pid)
        if not self.is_up:
            self._look_whether_up()
            return ""
        gone = {stub for stub in self._stubs if not is_child(stub.pid, self._server_pid)}
        found = self._incomplete({stub.model for stub in gone}) if gone else ""
        confirmed = found if found == self._suspect else ""
        self._suspect = found
        if found:
            self._next_look = now + SECONDS_TO_CONFIRM
        if not found:
            self._stubs -= gone  # their models were unloaded, or have new processes
        return confirmed

    def is_stuck(self) -> bool:
        """Return whether a process ended while Triton loads the models, and Triton has not detected it."""
        if self.is_up:
            return False
        now = time.monotonic()
        self._ended = {pid: self._ended.get(pid, now) for pid in find_ended_stubs(self._server_pid)}
        return any(now - since >= SECONDS_TO_NOTICE for since in self._ended.values())

    def _look_whether_up(self) -> None:
        index = self._index()
        if index is None:
            return
        self.is_up, self.up_since = True, time.monotonic()
        self.ready = ready_models(index)
        self.unloadable = next(iter(sorted(self._expected & failed_models(index))), "")
        # A process may have died before any scan found it. A model without processes makes _incomplete() count once.
        unseen = self.ready - {stub.model for stub in self._stubs}
        self._stubs |= {Stub(NOBODY, model) for model in unseen if self._has_stubs(model)}

    def _incomplete(self, models: set[str]) -> str:
        """Return one of these models that Triton reports as ready, but that has fewer processes than instances."""
        index = self._index()
        # While Triton does not answer, the result is "". It may refuse to answer, because the list may need a key.
        wanted = set() if index is None else models & ready_models(index) if isinstance(index, list) else models
        living = Counter(stub.model for stub in find_stubs(self._server_pid))
        for model in sorted(wanted):
            if living[model] < self._instances(model):
                return model
        return ""

    def _index(self) -> list[dict[str, Any]] | dict[str, Any] | None:
        """Return Triton's list of models; {} if it refuses to send it, None while it does not answer."""
        answer = self._ask("POST", "/v2/repository/index")
        return answer if answer is None or isinstance(answer, list) else {}

    def _has_stubs(self, model: str) -> bool:
        """Return whether a model uses Python or a Python-based backend; False if Triton does not answer."""
        config = self._config(model)
        return config.get("backend") == "python" or str(config.get("runtime", "")).endswith(".py")

    def _instances(self, model: str) -> int:
        """Return the number of processes that a model should have; 1 if Triton does not answer."""
        groups = self._config(model).get("instance_group")
        return sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", ()))) for group in groups or ()) or 1

    def _config(self, model: str) -> dict[str, Any]:
        """Return Triton's configuration of a model; {} if it does not answer."""
        config = self._ask("GET", f"/v2/models/{model}/config")
        return config if isinstance(config, dict) else {}

    def _ask(self, method: str, path: str) -> Any:
        return ask(self._address, method, path, SECONDS_TO_ANSWER)


def ask(address: tuple[str, int], method: str, path: str, timeout: float) -> Any:
    """Return the JSON of a response, {} for a response without JSON, or None without a response."""
    import http.client  # here, because it is not needed before tritonserver has started

    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request(method, path)
        text = connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    try:
        return json.loads(text)
    except ValueError:
        return {}


def ready_models(index: list[dict[str, Any]] | dict[str, Any]) -> set[str]:
    return {str(row["name"]) for row in index if row.get("state") == "READY"} if isinstance(index, list) else set()


def failed_models(index: list[dict[str, Any]] | dict[str, Any]) -> set[str]:
    """Return the models of an index that failed to load. A model that a request unloaded has not failed."""
    if not isinstance(index, list):
        return set()
    return {str(row["name"]) for row in index if has_failed(row)} - ready_models(index)  # an older version may be ready


def has_failed(row: Mapping[str, Any]) -> bool:
    """Return whether a row of an index is a version of a model that failed to load."""
    return row.get("state") == "UNAVAILABLE" and row.get("reason") not in (None, "", "unloaded")


def find_stubs(server_pid: int) -> set[Stub]:
    """Return the living stub processes of a tritonserver."""
    found = set()
    for folder in PROCESSES.iterdir():
        if folder.name.isdecimal() and is_child(int(folder.name), server_pid):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            # The second word is the file of the model: REPOSITORY/MODEL/VERSION/FILE.
            if words[0].endswith(STUB) and len(words) > 1 and words[1].count(b"/") >= 3:
                found.add(Stub(int(folder.name), words[1].decode(errors="replace").split("/")[-3]))
    return found


def find_ended_stubs(server_pid: int) -> set[int]:
    """Return the process ids of stubs that have ended, as zombies of a tritonserver that has not waited for them."""
    found = set()
    for folder in PROCESSES.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                name, _, rest = (folder / "stat").read_bytes().partition(b"(")[2].rpartition(b")")
                if name == STUB[:15] and rest.split()[:2] == [b"Z", str(server_pid).encode()]:
                    found.add(int(folder.name))
    return found


def is_child(pid: int, parent: int) -> bool:
    """Return whether a process lives and is a child of `parent`. A zombie has ended."""
    try:
        fields = (PROCESSES / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[1]) == parent
