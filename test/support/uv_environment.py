"""Separate environments for packages that conflict with those of the tests, and older ONNX Runtimes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def make_environment(folder: Path, packages: Sequence[str]) -> Path:
    """Install packages with uv into a new environment and return its Python; skip if this is not possible."""
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


def run_script(python: Path, script: str, *values: Any, **environment: str) -> Any:
    """Run a script with the values as JSON in its first argument; return the JSON of its last line."""
    command = [str(python), "-c", script, json.dumps(values)]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


VERSIONS = {
    "1.19.2": "Triton 24.10",
    "1.20.1": "Triton 25.01",
    "1.22.0": "Triton 25.05",
    "1.23.2": "Triton 25.08 (1.23), and the local server on Python 3.10",
    "1.27.0": "Triton 26.07",
    "1.28.0": "Triton 26.08",
}
"""Versions on PyPI, and their use."""

VERSION_PARAMETERS = [
    version if version in (min(VERSIONS), max(VERSIONS)) else pytest.param(version, marks=pytest.mark.nightly)
    for version in VERSIONS
]
"""For ``parametrize``: the lowest and the highest version for each change, the other versions nightly."""


def python(version: str) -> list[str]:
    """Return the command of a Python with a version of ONNX Runtime."""
    if importlib.util.find_spec("uv") is None:
        pytest.skip("needs uv, which brings other versions of ONNX Runtime: pip install uv")
    packages = ["--with", f"onnxruntime=={version}", "--with", "numpy<2"]
    return [sys.executable, "-m", "uv", "run", "-q", "--no-project", "--python", sys.executable, *packages, "python"]
