"""A Python with Ray, and the processes of a command that runs in it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
STAND_INS = ["-c", "from support.ray_run import main; main()"]
"""Arguments of Python for `triton-sam` without a server."""
NO_UV = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
"""Otherwise Ray makes the environment again for each of its processes."""


@pytest.fixture(scope="module")
def ray_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with Ray, which needs another NumPy than the local server; skip where it cannot be installed."""
    if importlib.util.find_spec("uv") is None:
        pytest.skip("needs uv, which brings Ray: pip install uv")
    folder = tmp_path_factory.mktemp("ray") / "venv"
    python = folder / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
    packages = ["-r", str(ROOT / "pyproject.toml"), "--extra", "ray", "--extra", "tiles", "pytest"]
    install = [*uv, "pip", "install", "-q", "--python", str(python), *packages]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"Ray cannot be installed: {installed.stderr[-300:]}")
    return python


def start(python: Path, words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start Python with arguments in a folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "test"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **NO_UV, "PYTHONPATH": path}
    return subprocess.Popen([str(python), *words], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)


def actors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the actors of Ray below a process."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended in the meantime, and so may any of them
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "MapWorker" in " ".join(child.cmdline()):
                    found.append(child)
    return found
