"""An installation of the project in a folder with any name: Python, a virtual environment, a checkout or a wheel."""

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
    """The home folder, the interpreter, the checkout or the wheel's files, and the environment of commands."""

    home: Path
    python: Path
    checkout: Path
    environment: dict[str, str]

    @property
    def repository(self) -> Path:
        return self.checkout / "model_repository"


def install(folder: Path) -> Installation:
    """Create a user's home folder with an installation. The packages are links to this environment's packages."""
    checkout = folder / "checkout"
    shutil.copytree(PACKAGE_ROOT, checkout / "triton_sam", ignore=shutil.ignore_patterns("__pycache__"))
    _copy_files(checkout)
    (checkout / "pyproject.toml").touch()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if not _is_utf8(folder):  # Python does not start from this virtual environment
        environment["PYTHONPATH"] = str(checkout)
        return Installation(folder, Path(sys.executable), checkout, environment)
    return Installation(folder, _environment(folder, _base(folder), checkout), checkout, environment)


def install_wheel(folder: Path) -> Installation:
    """Create a virtual environment with the wheel's files, without a checkout."""
    python = _environment(folder, _base(folder), None)
    (package,) = (folder / ".venv" / "lib").glob("*/site-packages/triton_sam")
    _copy_files(package / "_bundle")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return Installation(folder, python, package / "_bundle", {**environment, "XDG_DATA_HOME": str(folder / "data")})


def _copy_files(folder: Path) -> None:
    for name in MODELS:
        shutil.copytree(bundled("model_repository") / name, folder / "model_repository" / name)
    shutil.copytree(bundled("test/images"), folder / "test" / "images")


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _base(folder: Path) -> Path:
    """Create an interpreter in the folder, as uv and pyenv do; return its path."""
    name = f"python{sysconfig.get_python_version()}"
    prefix = Path(sys.base_prefix)
    base = folder / "python"
    for part in ("bin", "lib"):
        (base / part).mkdir(parents=True)
    shutil.copy2(Path(getattr(sys, "_base_executable", sys.executable)).resolve(), base / "bin" / name)
    for library in [prefix / "lib" / name, *(prefix / "lib").glob("libpython*.so*")]:
        (base / "lib" / library.name).symlink_to(library)
    return base / "bin" / name


def _environment(folder: Path, base: Path, checkout: Path | None) -> Path:
    """Create a virtual environment in the folder with an editable installation of a checkout; return its Python."""
    packages = folder / ".venv" / "lib" / base.name / "site-packages"
    packages.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith("triton_sam"):
            (packages / entry.name).symlink_to(entry)
    if checkout is None:
        shutil.copytree(PACKAGE_ROOT, packages / "triton_sam", ignore=shutil.ignore_patterns("__pycache__"))
    else:
        (packages / "_editable_impl_triton_sam.pth").write_text(f"{checkout}\n", encoding="utf-8")
    (folder / ".venv" / "bin").mkdir()
    python = folder / ".venv" / "bin" / "python"
    python.symlink_to(base)
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = {base.parent}\n", encoding="utf-8")
    return python
