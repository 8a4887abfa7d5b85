"""The content of pyproject.toml."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from triton_sam._common.bundle import checkout

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


def project() -> dict[str, Any]:
    """Return the parsed file; skip the test module without a checkout."""
    root = checkout()
    if root is None:
        pytest.skip("pyproject.toml is in the checkout only", allow_module_level=True)
    content: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return content
