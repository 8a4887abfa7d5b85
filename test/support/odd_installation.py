"""An installation of the project in a folder with any name: Python, a virtual environment and a checkout."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from triton_sam._common.bundle import bundled
from triton_sam.local_server.installation import PACKAGE_ROOT

MODELS = ("sam2", "sam2_encoder", "sam2_decoder")


@dataclass(frozen=True)
class Installation:
    """The interpreter, the checkout, and the variables of the environment that a command needs."""

    python: Path
    checkout: Path
    environment: dict[str, str]

    @property
    def repository(self) -> Path:
        return self.checkout / "model_repository"


def install(folder: Path) -> Installation:
    """Make a folder with all that a user has at home. The packages are links to those of this environment."""
    checkout = folder / "checkout"
    shutil.copytree(PACKAGE_ROOT, checkout / "triton_sam", ignore=shutil.ignore_patterns("__pycache__"))
    for name in MODELS:
        shutil.copytree(bundled("model_repository") / name, checkout / "model_repository" / name)
    shutil.copytree(bundled("test/images"), checkout / "test" / "images")
    (checkout / "pyproject.toml").touch()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if not _is_utf8(folder):  # Python itself does not start from such a virtual environment
        environment["PYTHONPATH"] = str(checkout)
        return Installation(Path(sys.executable), checkout, environment)
    return Installation(_environment(folder, _base(folder), checkout), checkout, environment)


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _base(folder: Path) -> Path:
    """Make an interpreter in the folder, as uv and pyenv do; return its path."""
    name = f"python{sysconfig.get_python_version()}"
    prefix = Path(sys.base_prefix)
    base = folder / "python"
    for part in ("bin", "lib"):
        (base / part).mkdir(parents=True)
    shutil.copy2(Path(getattr(sys, "_base_executable", sys.executable)).resolve(), base / "bin" / name)
    for library in [prefix / "lib" / name, *(prefix / "lib").glob("libpython*.so*")]:
        (base / "lib" / library.name).symlink_to(library)
    return base / "bin" / name


def _environment(folder: Path, base: Path, checkout: Path) -> Path:
    """Make a virtual environment in the folder, with an editable installation of the checkout; return its Python."""
    packages = folder / ".venv" / "lib" / base.name / "site-packages"
    packages.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    (packages / "_editable_impl_triton_sam.pth").write_text(f"{checkout}\n", encoding="utf-8")
    (folder / ".venv" / "bin").mkdir()
    python = folder / ".venv" / "bin" / "python"
    python.symlink_to(base)
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = {base.parent}\n", encoding="utf-8")
    return python
