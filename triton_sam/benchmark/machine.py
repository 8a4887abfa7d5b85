"""Describe the machine and software of a measurement, and monitor the CPU, memory and GPU of a server."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._common.extras import missing
from ..local_server.settings import has_gpu

try:
    import psutil
except ImportError as error:
    raise missing("benchmarks need", "benchmark", error) from error

PACKAGES = ("numpy", "pillow", "onnxruntime", "onnxruntime-gpu", "torch", "sam2", "segment-anything", "transformers",
            "tritonclient", "nvidia-pytriton", "grpcio")  # fmt: skip
SAMPLE_SECONDS = 0.25


def describe_machine() -> dict[str, Any]:
    """Return the CPU, memory, GPUs, operating system and package versions of this machine, as JSON types."""
    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "threads": psutil.cpu_count() or 0,
        "usable_threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_before": round(psutil.getloadavg()[0], 2),
        "gpus": _gpus(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "packages": _versions(),
    }


class Watch:
    """A context manager that samples the processes of a server and the GPUs of this machine every 0.25 s.

    On exit, ``metrics`` holds the available metrics: server_cpu_percent (100 is one fully used CPU thread),
    server_memory_mb (the maximum) and gpu_percent (the mean utilisation of the busiest GPU).

    Args:
        pid: the process id of tritonserver; None for a remote server, for which only the local GPUs are sampled.
    """

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._memory: list[float] = []
        self._gpu: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._cpu_before = 0.0
        self.metrics: dict[str, float] = {}

    def __enter__(self) -> Watch:
        self._cpu_before = _cpu_seconds(self._pid)
        self._started = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        seconds = time.perf_counter() - self._started
        if self._pid is not None and seconds > 0:
            self.metrics["server_cpu_percent"] = 100 * (_cpu_seconds(self._pid) - self._cpu_before) / seconds
        if self._memory:
            self.metrics["server_memory_mb"] = max(self._memory)
        if self._gpu:
            self.metrics["gpu_percent"] = statistics.mean(self._gpu)

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            if self._pid is not None:
                self._memory.append(sum(_memory_mb(process) for process in _process_tree(self._pid)))
            self._gpu += _gpu_use()


def _process_tree(pid: int | None) -> list[psutil.Process]:
    """Return a process and its descendants; empty if the process has ended."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _cpu_seconds(pid: int | None) -> float:
    total = 0.0
    for process in _process_tree(pid) if pid is not None else []:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _memory_mb(process: psutil.Process) -> float:
    """Return resident memory in MB without shared memory, which would be counted once per process."""
    with contextlib.suppress(psutil.Error):
        info = process.memory_info()
        return float(info.rss - getattr(info, "shared", 0)) / 1e6
    return 0.0


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _nvml() -> Any:
    """Initialise NVIDIA's management library and return it; None if the package or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - its error classes exist only if it is installed
        return None
    return pynvml


def _handles(nvml: Any) -> list[Any]:
    """Return the available GPUs, without failed GPUs and GPUs that this user may not access."""
    handles = [_query(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(_query(nvml.nvmlDeviceGetCount) or 0)]
    return [handle for handle in handles if handle is not None]


def _query(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML. Return None for unavailable values, such as the memory of a GPU that shares the CPU's memory."""
    with contextlib.suppress(Exception):
        return function(*arguments)
    return None


def _gpus() -> list[str]:
    nvml = _nvml()
    if nvml is None:
        return []
    driver = _text(_query(nvml.nvmlSystemGetDriverVersion) or "unknown")
    found = []
    for handle in _handles(nvml):
        memory = _query(nvml.nvmlDeviceGetMemoryInfo, handle)
        size = [] if memory is None else [f"{float(memory.total) / 2**30:.0f} GiB"]
        name = _text(_query(nvml.nvmlDeviceGetName, handle) or "a GPU without a name")
        found.append(", ".join([name, *size, f"driver {driver}"]))
    return found


def _gpu_use() -> list[float]:
    nvml = _nvml() if has_gpu() else None
    if nvml is None:
        return []
    rates = [_query(nvml.nvmlDeviceGetUtilizationRates, handle) for handle in _handles(nvml)]
    used = [float(rate.gpu) for rate in rates if rate is not None]
    return [max(used)] if used else []


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
