"""Environments with the clients of other tools, which slow tests make themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def python_with(folder: Path, *packages: str) -> Path:
    """Return a Python that has packages; skip the test where they cannot be installed."""
    pytest.importorskip("uv")
    uv = [sys.executable, "-m", "uv"]
    python = folder / "bin/python"
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
    install = [*uv, "pip", "install", "-q", "--python", str(python), *packages]
    made = subprocess.run(install, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"{', '.join(packages)} cannot be installed: {made.stderr[-300:]}")
    return python


def run_script(python: Path, script: str, *values: Any, **environment: str) -> Any:
    """Run a script, which gets the values as JSON in its first argument; return the JSON in its last line."""
    command = [str(python), "-c", script, json.dumps(values)]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
