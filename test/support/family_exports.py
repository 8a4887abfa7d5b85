"""Exports of small random models of the official code, made once for the whole test run."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from triton_sam._common.bundle import bundled
from triton_sam.families import get_family
from triton_sam.sessions.configs import write_programs


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
def root() -> Path:
    """The folder of all exports of the test run. With ``pytest -n 2``, both processes use the same one."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is not None:
        return shared_root(run)
    folder = Path(tempfile.mkdtemp(prefix="triton_sam_tests_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def shared_root(run: str) -> Path:
    """The folder of a run in several processes. test/conftest.py removes it at the end of the run."""
    return Path(tempfile.gettempdir(), f"triton-sam-exports-{run}")


def export_once(family: str, name: str, **settings: Any) -> tuple[Path, dict[str, Path]]:
    """Export a model, unless the other process has done so, and return the repository and the files by role."""
    from triton_sam.export.registry import export
    from triton_sam.export.settings import Settings

    folder = root() / name
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "files.json"
    with FileLock(folder / "lock"):
        if not kept.exists():
            files = export(family, Settings(folder / "models", random_seed=0, progress=False, **settings)).files
            kept.write_text(json.dumps({role: str(path) for role, path in files.items()}))
    return folder / "models", {role: Path(path) for role, path in json.loads(kept.read_text()).items()}


@functools.cache
def sam1_micro() -> FamilyExport:
    """SAM1 with two blocks: one of windows, one global."""
    from triton_sam.export.sam1.model import load_model

    return FamilyExport(load_model(None, "micro", random_seed=0), *export_once("sam1", "sam1", model="micro"))


@functools.cache
def mobilesam_micro() -> FamilyExport:
    """MobileSAM with one block in each stage."""
    from triton_sam.export.mobilesam.model import load_model

    model = load_model(None, "micro", random_seed=0)
    return FamilyExport(model, *export_once("mobilesam", "mobilesam", model="micro"))


@functools.cache
def edgetam_micro() -> FamilyExport:
    """EdgeTAM with few channels, and one block in each stage."""
    from triton_sam.export.edgetam.model import load_model

    model = load_model(None, "micro", random_seed=0)
    return FamilyExport(model, *export_once("edgetam", "edgetam", model="micro"))


@functools.cache
def samhq_micro(size: str = "micro") -> FamilyExport:
    """SAM-HQ with few blocks, and TinyViT ("micro") or ViT ("micro_vit") as encoder."""
    from triton_sam.export.samhq.model import load_model

    model = load_model(None, size, random_seed=0)
    return FamilyExport(model, *export_once("samhq", f"samhq_{size}", model=size))


@functools.cache
def sam3_reduced() -> FamilyExport:
    """SAM3's tracker with two layers: one of windows, one global."""
    from triton_sam.export.sam3.model import load_model

    return FamilyExport(load_model(None, "reduced", random_seed=0), *export_once("sam3", "sam3", model="reduced"))


@functools.cache
def sam3_concepts() -> FamilyExport:
    """SAM3's tracker and detector of concepts, both with few layers."""
    from triton_sam.export.sam3.model import add_detector, load_model

    model = load_model(None, "reduced", random_seed=0)
    add_detector(model, None, "reduced", random_seed=0)
    return FamilyExport(model, *export_once("sam3", "concepts", model="reduced", concepts=True))


_PACKAGES = {"mobilesam": "mobile_sam", "samhq": "segment_anything_hq", "edgetam": "timm"}
SERVED = ("sam1", "sam2", "sam3", *(name for name, package in _PACKAGES.items() if importlib.util.find_spec(package)))
"""The families of all_families(). The packages of the small families are not everywhere where the others are."""
SMALL = {"mobilesam": mobilesam_micro, "samhq": samhq_micro, "edgetam": edgetam_micro}
"""The exports of the small families."""


def all_families(folder: Path) -> Path:
    """Fill a model repository with the families SERVED, pairs and session models: small ones but for SAM2."""
    for family in SERVED:
        write_programs(folder, get_family(family), video=False)
    for role in ("encoder", "decoder"):
        shutil.copytree(sam1_micro().repository / f"sam1_{role}", folder / f"sam1_{role}")
        shutil.copytree(sam3_reduced().repository / f"sam3_{role}", folder / f"sam3_{role}")
        for family in SMALL.keys() & set(SERVED):
            shutil.copytree(SMALL[family]().repository / f"{family}_{role}", folder / f"{family}_{role}")
        shutil.copytree(bundled("model_repository") / f"sam2_{role}" / "1", folder / f"sam2_{role}" / "1")
        shutil.copy(bundled("model_repository") / f"sam2_{role}" / "config.pbtxt", folder / f"sam2_{role}")
    return folder
