"""The processes and shared memory segments of a local server."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator

import psutil

from triton_sam.local_server import leftovers


def family_of(pid: int) -> list[psutil.Process]:
    """Return a tritonserver process with its supervisor and its Python stubs."""
    triton = psutil.Process(pid)
    return [triton, triton.parent(), *triton.children(recursive=True)]


def server_memory(pid: int) -> int:
    """Return the memory of a server's processes in bytes. Shared pages count once."""
    return sum(process.memory_full_info().pss for process in family_of(pid))


def kill_model(pid: int, model: str) -> None:
    """Kill the process of a server's Python model, and wait until it has ended."""
    stubs = [each for each in family_of(pid) if any(f"/{model}/" in word for word in _words(each))]
    assert len(stubs) == 1
    stubs[0].kill()
    assert all_gone(stubs)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keep a server from answering inside the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _words(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty if it has ended, or is a zombie."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def all_gone(processes: list[psutil.Process], seconds: float = 60.0) -> bool:
    """Wait until all processes have ended; return False if some still run after the time limit.

    Zombies count as ended: only their exit status has not been collected yet.
    """
    deadline = time.monotonic() + seconds
    while any(process.is_running() and _words(process) for process in processes):  # it may end in between
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def segments() -> set[str]:
    """Return the names of the shared memory segments of all local servers on this machine."""
    return {path.name for path in leftovers.SHARED_MEMORY.glob(f"{leftovers.SHM_FAMILY}*")}


def segments_of_log(log: str) -> set[str]:
    """Return the segments of the server that wrote a log, because other servers may run on this machine."""
    identity = re.search(r"triton-sam-([0-9a-f]{8})", log)
    assert identity is not None, log
    return {name for name in segments() if name.startswith(leftovers.SHM_FAMILY + identity[1])}


def segments_of(pid: int) -> str:
    """Return the common prefix of the names of a server's segments."""
    flag = next(word for word in psutil.Process(pid).cmdline() if "shm-region-prefix-name" in word)
    return flag.rpartition("=")[2]
