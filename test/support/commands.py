"""Runs of the command line in this process, repositories for them, and the environment of other programs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from triton_sam._common.bundle import bundled
from triton_sam.cli import main


def call(line: str, *more: object) -> int:
    """Run a command line whose words have no spaces, and further words of any form."""
    return main([*line.split(), *map(str, more)])


def with_support(**variables: str) -> dict[str, str]:
    """Return the environment of a program that imports the package and the support code as this process does."""
    tests = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path]), **variables}


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one-line error of a failing command."""
    assert main(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    return error


def copy_committed(folder: Path, *models: str) -> Path:
    """Copy committed models to a repository. Only the demo model has weights."""
    for name in models:
        shutil.copytree(bundled("model_repository") / name, folder / name, ignore=shutil.ignore_patterns("[2-9]*"))
    return folder
