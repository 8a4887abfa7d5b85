"""Environments of their own for packages that do not fit beside those of the tests."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def make_environment(folder: Path, packages: Sequence[str]) -> Path:
    """Install packages by uv into a new environment, and return its Python; skip where that is not possible.

    Args:
        folder: the new environment.
        packages: arguments of `uv pip install`.
    """
    if importlib.util.find_spec("uv") is None:
        pytest.skip("needs uv, which makes environments: pip install uv")
    python = folder / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
    install = [*uv, "pip", "install", "-q", "--python", str(python), *packages]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"the packages cannot be installed: {installed.stderr[-300:]}")
    return python
