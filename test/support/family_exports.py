"""Exports of small random models of the official code, made once for the whole test run."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam._common.bundle import bundled


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
    from triton_sam.export.registry import export
    from triton_sam.export.sam1.model import load_model
    from triton_sam.export.settings import Settings

    exported = export("sam1", Settings(repository(), model="micro", random_seed=0, progress=False))
    return FamilyExport(load_model(None, "micro", random_seed=0), repository(), exported.files)


@functools.cache
def sam3_reduced() -> FamilyExport:
    """SAM3's tracker with two layers: one of windows, one global."""
    from triton_sam.export.registry import export
    from triton_sam.export.sam3.model import load_model
    from triton_sam.export.settings import Settings

    exported = export("sam3", Settings(repository(), model="reduced", random_seed=0, progress=False))
    return FamilyExport(load_model(None, "reduced", random_seed=0), repository(), exported.files)


@functools.cache
def sam3_concepts() -> FamilyExport:
    """SAM3's tracker and detector of concepts, both with few layers."""
    from triton_sam.export.registry import export
    from triton_sam.export.sam3.model import add_detector, load_model
    from triton_sam.export.settings import Settings

    place = repository() / "concepts"
    exported = export("sam3", Settings(place, model="reduced", random_seed=0, concepts=True, progress=False))
    model = load_model(None, "reduced", random_seed=0)
    add_detector(model, None, "reduced", random_seed=0)
    return FamilyExport(model, place, exported.files)


def three_families(folder: Path) -> Path:
    """Fill a model repository with all families, pairs and session models: small ones for SAM1 and SAM3."""
    for family in ("sam1", "sam2", "sam3"):
        shutil.copytree(bundled("model_repository") / family, folder / family)
    for role in ("encoder", "decoder"):
        shutil.copytree(sam1_micro().repository / f"sam1_{role}", folder / f"sam1_{role}")
        shutil.copytree(sam3_reduced().repository / f"sam3_{role}", folder / f"sam3_{role}")
        shutil.copytree(bundled("model_repository") / f"sam2_{role}" / "1", folder / f"sam2_{role}" / "1")
        shutil.copy(bundled("model_repository") / f"sam2_{role}" / "config.pbtxt", folder / f"sam2_{role}")
    return folder
