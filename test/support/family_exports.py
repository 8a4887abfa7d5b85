"""Exports of small random models of the official code, cached on the disk between test runs, and runs of graphs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from support.two_workers import cached_in_group

import triton_sam
from triton_sam._common.bundle import bundled
from triton_sam.families import get_family
from triton_sam.sessions.configs import write_programs

Arrays = dict[str, np.ndarray]

PACKAGES = {
    "sam1": "segment_anything",
    "sam2": "sam2",
    "sam3": "transformers",
    "mobilesam": "mobile_sam",
    "samhq": "segment_anything_hq",
    "edgetam": "timm",
}
"""The module of the official code of each family."""
SMALLEST = {
    "sam1": "micro",
    "sam2": "sam2.1_hiera_micro.yaml",
    "sam3": "reduced",
    "mobilesam": "micro",
    "samhq": "micro",
    "edgetam": "micro",
}
"""The exporter's name of the smallest size of each family. Its template is filled with random weights."""
_SOURCES = ("_common", "export", "families", "repository", "sessions", "wire")
_VERSIONS = ("torch", "onnx", "onnxscript", "numpy", "timm", "transformers", "sam2")
_UNUSED_DAYS = 7


class FamilyExport:
    """One exported pair.

    Args:
        family: the family.
        repository: the model repository, shared with other tests: a test that writes into it must copy it first.
        files: ONNX files by role.
        settings: the size, and whether it finds words.
    """

    def __init__(self, family: str, repository: Path, files: dict[str, Path], **settings: Any) -> None:
        self.family, self.repository, self.files = family, repository, files
        self._settings = settings

    @functools.cached_property
    def model(self) -> Any:
        """The official torch model with the exported weights."""
        from triton_sam.export import registry
        from triton_sam.export.settings import Settings

        side, size = get_family(self.family).image_size, self._settings["model"]
        exporter = registry.exporter(self.family)
        model = exporter.load(None, size, image_size=side, random_seed=0)
        if self._settings.get("concepts"):
            exporter.add_concepts(model, Settings(Path(), random_seed=0, **self._settings))
        return model


@functools.cache
def root() -> Path:
    """Return the folder of all exports of this version of the code and its packages, in the user's cache."""
    digest = hashlib.sha256(sys.version.encode())
    package = Path(triton_sam.__file__).parent
    for name in _SOURCES:
        for path in sorted((package / name).rglob("*")):
            if "__pycache__" not in path.parts and path.is_file() and path.suffix != ".md":  # bytecode may vanish
                digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    for name in _VERSIONS:
        try:
            digest.update(f"{name} {version(name)}".encode())
        except PackageNotFoundError:
            digest.update(name.encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "triton-sam-tests")
    folder = cache / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in cache.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removes it at the same time
            if time.time() - other.stat().st_mtime > _UNUSED_DAYS * 86400:
                shutil.rmtree(other, ignore_errors=True)
    return folder


@cached_in_group
def export_once(family: str, **settings: Any) -> FamilyExport:
    """Export a small model, unless an earlier run or another process has done so."""
    from triton_sam.export.registry import export
    from triton_sam.export.settings import Settings

    settings = {"model": SMALLEST[family], **settings}
    folder = root() / "_".join([family, *(f"{name}={value}" for name, value in settings.items())])
    folder.mkdir(exist_ok=True)
    kept, models = folder / "files.json", folder / "models"
    with FileLock(folder / "lock"):
        if not kept.exists():
            shutil.rmtree(models, ignore_errors=True)  # an interrupted run may have left files
            files = export(family, Settings(models, random_seed=0, progress=False, **settings)).files
            kept.write_text(json.dumps({role: str(path.relative_to(models)) for role, path in files.items()}))
    files = {role: models / place for role, place in json.loads(kept.read_text()).items()}
    return FamilyExport(family, models, files, **settings)


sam1_micro = functools.partial(export_once, "sam1")
sam2_micro = functools.partial(export_once, "sam2")
mobilesam_micro = functools.partial(export_once, "mobilesam")
edgetam_micro = functools.partial(export_once, "edgetam")
samhq_micro = functools.partial(export_once, "samhq")
sam3_reduced = functools.partial(export_once, "sam3")
sam3_concepts = functools.partial(export_once, "sam3", concepts=True)
sam3_video_words = functools.partial(export_once, "sam3", concepts=True, video=True)

# The packages of the small families may be missing where the others are installed.
SERVED = tuple(
    name
    for name, package in PACKAGES.items()
    if name in ("sam1", "sam2", "sam3") or importlib.util.find_spec(package) is not None
)
"""The families of all_families()."""
SMALL = {"mobilesam": mobilesam_micro, "samhq": samhq_micro, "edgetam": edgetam_micro}
"""The exports of the small families."""


def all_families(folder: Path) -> Path:
    """Fill a model repository with pairs and session models of the families SERVED, small except for SAM2."""
    for family in SERVED:
        write_programs(folder, get_family(family), video=False)
        for role in ("encoder", "decoder"):
            name = f"{family}_{role}"
            if family != "sam2":
                shutil.copytree(export_once(family).repository / name, folder / name)
            else:
                shutil.copytree(bundled("model_repository") / name / "1", folder / name / "1")
                shutil.copy(bundled("model_repository") / name / "config.pbtxt", folder / name)
    return folder


def session_of(model: Any, *, fused: bool = True) -> Any:
    """Return a session of ONNX Runtime for a graph or a file. It logs no errors, because it raises them."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not fused:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_graph(model: Any, inputs: Arrays, names: Sequence[str] = ()) -> Arrays:
    """Return outputs of a graph, a file or a session by name: those of the names, or all."""
    session = model if hasattr(model, "run") else session_of(model)
    names = list(names) or [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
