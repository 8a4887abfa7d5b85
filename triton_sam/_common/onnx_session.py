"""The setup of ONNX Runtime on a server: threads, denormals, memory, and error messages.

The Python-based `onnxruntime` backend (`local_server/backends/onnxruntime`) and a session model that decodes in its own
process both open models with it, so that their results are equal to the bit. `prepare_triton` copies this file beside
the backend's `model.py`, which runs without this package. It therefore imports only the standard library and, lazily,
ONNX Runtime.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CGROUP = Path("/sys/fs/cgroup")


def session_options(parameters: Mapping[str, str]) -> Any:
    """Translate a model's parameters into ONNX Runtime's session options.

    Args:
        parameters: `intra_op_thread_count`, `inter_op_thread_count`, `execution_mode`, and keys that start with
            "session.", which are passed to ONNX Runtime unchanged. Others are ignored.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = number(parameters, "intra_op_thread_count") or usable_cores()
    options.inter_op_num_threads = number(parameters, "inter_op_thread_count")
    if number(parameters, "execution_mode"):
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    # Threads do not spin while they wait for work. Spinning makes consecutive runs 4 % faster (33 ms instead of 34 ms
    # for a decoder on two idle cores), but it doubles the CPU time of a click (115 ms instead of 59 ms) at the expense
    # of other programs: on busy cores a click took 210 ms with spinning and 125 ms without.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # The softmax over the 4096 positions of an image gives denormal weights (below 1e-38), which slow a processor down
    # many times. Setting them to zero reduced the CPU time of a click on the demo model from 145 ms to 87 ms, with the
    # same result bit for bit.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    for key, value in parameters.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    return options


def cpu_options(parameters: Mapping[str, str]) -> Any:
    """Return session_options() for a model on a CPU, with a memory limit.

    Without a limit, the system would kill the process when a request needs too much memory: a request of a few
    megabytes can request a million masks of megabytes each. With a limit, the request fails.

    Args:
        parameters: as for session_options(), and `cpu_mem_limit`: bytes for the tensors of all requests of this
            process. The default is one half of the memory.
    """
    import onnxruntime

    options = session_options(parameters)
    limit = number(parameters, "cpu_mem_limit") or usable_memory() // 2
    kind, default = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, default)
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({"max_mem": limit}))
    options.add_session_config_entry("session.use_env_allocators", "1")
    # From the second run on, ONNX Runtime would allocate one block for all tensors of a run, beside the memory that the
    # first run left in the arena: a reduced encoder of SAM3 took 4.0 GB instead of 2.3 GB, in the same time.
    options.enable_mem_pattern = False
    return options


def number(parameters: Mapping[str, str], key: str) -> int:
    """Return a parameter as a whole number; 0 when it is missing."""
    text = parameters.get(key, "0")
    if not text.isdecimal():
        raise ValueError(f"parameter {key} must be a whole number, not {text!r}")
    return int(text)


def one_line(error: Exception) -> str:
    """Return the text of an error as one line, without ONNX Runtime's prefix, source paths and stack."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"\S+/onnxruntime/\S+:\d+ [^\[]*?(?=[A-Z])", "", text) or type(error).__name__
    return text.encode("utf-8", errors="replace").decode()  # Triton's C++ code rejects surrogates


def shown(file: Path) -> str:
    """Return the path of a file for a message: the user's path, without the links of a local server.

    A path that is not UTF-8 is shown with replacement characters, because Triton's C++ code rejects other texts.
    """
    return str(file.resolve()).encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")


def usable_cores() -> int:
    """Return the number of physical cores that this process may use, by its CPU affinity and its container's quota."""
    allowed = os.sched_getaffinity(0)
    cores = {thread_siblings(cpu) for cpu in allowed}
    return max(1, int(min(cgroup_quota(), len(cores))))


def usable_memory() -> int:
    """Return the memory of this machine, or the limit of its container, in bytes."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        with contextlib.suppress(OSError, ValueError):  # the file says "max" if there is no limit
            limits.append(int((CGROUP / file).read_text()))
    return min(limits)


def thread_siblings(cpu: int) -> str:
    """Return a text that identifies the physical core of a logical CPU."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text("ascii")
    except OSError:
        return str(cpu)


def cgroup_quota() -> float:
    """Return the container's CPU limit in cores; infinity when it has none."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # cgroup v2, v1
        try:
            quota, period = " ".join((CGROUP / file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    return math.inf


_ENVIRONMENT = ctypes.c_uint32 * 8
"""fenv_t of the C library: 32 bytes on x86-64, 8 bytes on ARM."""
_PLACES = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}
"""By processor: the index of the word in fenv_t, and the bits to set.

x86-64: flush-to-zero and denormals-are-zero in MXCSR; ARM: FZ in FPCR."""


def flush_in_this_thread() -> bool:
    """Make the calling thread, and threads that it starts later, treat denormal numbers (below 1e-38) as zero.

    ONNX Runtime's option `session.set_denormal_as_zero` applies to its own threads and to the thread that opens the
    first model of a process. Any other thread that runs a model computes its share with denormal numbers, which
    processors multiply many times more slowly.

    Returns:
        Whether this system supports it: Linux on x86-64 and ARM.
    """
    place = _PLACES.get(platform.machine())
    if sys.platform != "linux" or place is None:
        return False
    word, bits = place
    library, environment = ctypes.CDLL(None), _ENVIRONMENT()
    try:
        library.fegetenv(ctypes.byref(environment))
        environment[word] |= bits
        return bool(library.fesetenv(ctypes.byref(environment)) == 0)
    except AttributeError:  # this Python is not linked with a C library that has these functions
        return False
