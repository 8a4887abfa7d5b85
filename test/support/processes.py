"""The processes and shared memory segments of a local server."""

from __future__ import annotations

import re
import time

import psutil

from triton_sam.local_server import supervisor


def family_of(pid: int) -> list[psutil.Process]:
    """A tritonserver with its supervisor and its stubs."""
    triton = psutil.Process(pid)
    return [triton, triton.parent(), *triton.children(recursive=True)]


def all_gone(processes: list[psutil.Process], seconds: float = 8.0) -> bool:
    """A zombie is gone too: its parent has not looked yet."""
    deadline = time.monotonic() + seconds
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def segments() -> set[str]:
    return {path.name for path in supervisor.SHARED_MEMORY.glob(f"{supervisor.SHM_FAMILY}*")}


def segments_of_log(log: str) -> set[str]:
    """The segments of the server that wrote a log; other servers may run on this machine."""
    identity = re.search(r"triton-sam-([0-9a-f]{8})", log)
    assert identity is not None, log
    return {name for name in segments() if name.startswith(supervisor.SHM_FAMILY + identity[1])}


def segments_of(pid: int) -> str:
    """The prefix that the segments of one server have in common."""
    flag = next(word for word in psutil.Process(pid).cmdline() if "shm-region-prefix-name" in word)
    return flag.rpartition("=")[2]
