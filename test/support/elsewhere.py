"""Makes this process resemble one on Windows: POSIX-only parts of Python are removed.

It is imported before anything else, also as a plugin: `pytest -p support.elsewhere`. It shows that our code does not
need these parts. Libraries are imported first and still treat this system as Linux.
"""

import asyncio
import concurrent.futures
import os
import signal
import sys
from types import ModuleType
from typing import cast

import filelock
import numpy as np
import PIL.Image
import tritonclient.grpc.aio
import urllib3

if "_pytest" in sys.modules:
    import _pytest.tmpdir

    setattr(_pytest.tmpdir, "get_user_id", lambda: None)  # noqa: B010 - as on Windows

ABSENT_MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios")
ABSENT_FROM_OS = (
    "chown", "fork", "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg", "mkfifo", "register_at_fork",
    "setsid", "sysconf", "uname",
)  # fmt: skip
ABSENT_LIBRARIES = ("onnxruntime", "torch")
"""Packages that need the removed parts. Tests that compare with them are skipped."""
ABSENT_SIGNALS = ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2")

IMPORTED_FIRST = (
    asyncio,
    concurrent.futures,
    filelock,
    np,
    PIL.Image,
    tritonclient.grpc.aio,
    urllib3,
)

assert not any(name.partition(".")[0] == "triton_sam" for name in sys.modules), "import support.elsewhere first"
for module in (*ABSENT_MODULES, *ABSENT_LIBRARIES):
    sys.modules[module] = cast("ModuleType", None)  # its import raises ModuleNotFoundError
for place, names in ((os, ABSENT_FROM_OS), (signal, ABSENT_SIGNALS)):
    for name in names:
        if hasattr(place, name):
            delattr(place, name)
