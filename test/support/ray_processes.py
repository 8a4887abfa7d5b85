"""A Python with Ray, and the processes of a command that runs in it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import psutil
import pytest
from support.uv_environment import make_environment

ROOT = Path(__file__).parents[2]
STAND_INS = ["-c", "from support.ray_run import main; main()"]
"""Arguments of Python for `triton-sam` without a server."""
NO_UV = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
"""Otherwise, Ray recreates the environment for each of its processes."""


@pytest.fixture(scope="module")
def ray_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with Ray, whose NumPy differs from the local server's; skip if it cannot be installed."""
    packages = ["-r", str(ROOT / "pyproject.toml"), "--extra", "ray", "--extra", "tiles", "pytest"]
    return make_environment(tmp_path_factory.mktemp("ray") / "venv", packages)


def start(python: Path, words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start Python with arguments in a folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "test"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **NO_UV, "PYTHONPATH": path}
    return subprocess.Popen([str(python), *words], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)


def actors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the actors of Ray below a process."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):  # processes may end meanwhile
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "MapWorker" in " ".join(child.cmdline()):
                    found.append(child)
    return found
