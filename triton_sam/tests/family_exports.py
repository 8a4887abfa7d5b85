"""Exports of small random models of the official code, made once for the whole test run."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FamilyExport:
    """One exported pair.

    Args:
        model: the official torch model with the exported weights.
        repository: the model repository.
        files: ONNX files by role.
    """

    model: Any
    repository: Path
    files: dict[str, Path]


@functools.cache
def repository() -> Path:
    """A model repository for the whole test run, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="triton_sam_tests_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def sam1_micro() -> FamilyExport:
    """SAM1 with two blocks: one of windows, one global."""
    from triton_sam.export.sam1 import export_sam1
    from triton_sam.export.sam1_model import load_model

    exported = export_sam1(None, "micro", repository(), random_seed=0, progress=False)
    return FamilyExport(load_model(None, "micro", random_seed=0), repository(), exported.files)


@functools.cache
def sam3_reduced() -> FamilyExport:
    """SAM3's tracker with two layers: one of windows, one global."""
    from triton_sam.export.sam3 import export_sam3
    from triton_sam.export.sam3_model import load_model

    exported = export_sam3(None, "reduced", repository(), random_seed=0, progress=False)
    return FamilyExport(load_model(None, "reduced", random_seed=0), repository(), exported.files)
