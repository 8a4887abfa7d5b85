"""The ONNX Runtimes of the supported Triton containers; `uv` provides them."""

from __future__ import annotations

import importlib.util
import sys

import pytest

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
