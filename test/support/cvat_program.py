"""`cvat-cli` in a separate environment, with a function of triton_sam."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.uv_environment import make_environment

import triton_sam

Run = Callable[..., str]


def install_program(folder: Path) -> Path:
    """Return the program in a new environment; skip if it cannot be installed."""
    return make_environment(folder / "venv", ["cvat-cli"]).with_name("cvat-cli")


def runner(program: Path, folder: Path) -> Run:
    """Return a function that starts the program with a function of triton_sam, and returns the program's output.

    Its arguments are CVAT's URL, the words of the command, and the parameters of triton_sam's function. The program
    writes its cache into the folder.
    """
    places = [str(Path(triton_sam.__file__).parents[1]), str(Path(np.__file__).parents[1])]
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.path += {places!r}")  # after the program's packages
    variables = {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder), "CVAT_ACCESS_TOKEN": "any"}

    def run(address: str, *words: str, **parameters: Any) -> str:
        given = [f"{name}={type(value).__name__}:{value}" for name, value in parameters.items()]
        command = [str(program), "--server-host", address, *words, "--function-module", "triton_sam.integrations.cvat"]
        command += [part for each in given for part in ("-p", each)]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    return run
