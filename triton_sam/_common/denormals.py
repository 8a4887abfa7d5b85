"""Make a thread treat denormal numbers (below about 1e-38) as zero.

ONNX Runtime's option `session.set_denormal_as_zero` applies to its own threads and to the thread that opens the first
model of a process. Any other thread that runs a model computes its share with denormal numbers, which processors
multiply many times more slowly.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_ENVIRONMENT = ctypes.c_uint32 * 8
"""fenv_t of the C library: 32 bytes on x86-64, 8 bytes on ARM."""
_PLACES = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}
"""By processor: the index of the word in fenv_t, and the bits to set.

x86-64: flush-to-zero and denormals-are-zero in MXCSR; ARM: FZ in FPCR."""


def flush_in_this_thread() -> bool:
    """Make the calling thread, and threads that it starts later, treat denormal numbers as zero.

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
