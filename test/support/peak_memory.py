"""Measures the memory of a run with all processes that its tests start."""

from __future__ import annotations

import threading
from pathlib import Path

GIB = 1 << 30


class PeakMemory:
    """Samples the system's used memory every second, minus the memory used before the run."""

    def __init__(self) -> None:
        self._before = _used()
        self._peak = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(1):
            self._peak = max(self._peak, _used() - self._before)

    def write(self, file: Path) -> str:
        """Stop, write the peak to a file, and return the written line."""
        self._end.set()
        self._thread.join()
        line = f"peak memory of the run: {self._peak / GIB:.1f} GB"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(line + "\n", encoding="utf-8")
        return line


def _used() -> int:
    import psutil  # conftest imports this module wherever tests run; psutil needs POSIX on Linux

    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)
