"""Find a Triton to run: in the nvidia-pytriton wheel, or in a directory like /opt/tritonserver."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triton_sam._common import onnx_session, process, strict_json
from triton_sam._common.extras import find_package, install
from triton_sam.errors import ConfigurationError, LocalServerError, MissingDependencyError
from triton_sam.local_server import stub_path
from triton_sam.local_server.closed import PlainNames

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
OWN_BACKENDS = Path(__file__).resolve().parent / "backends"
DOCKER_HINT = "run Triton in Docker instead: docker compose up"
MACHINES = ("x86_64", "aarch64")
"""Processors with Linux wheels of nvidia-pytriton; pyproject.toml has the same list as markers."""
PYTHONS = ("3.10", "3.11", "3.12")
"""Versions of Python that nvidia-pytriton supports; pyproject.toml has the same list as markers."""


@dataclass(frozen=True)
class Triton:
    """A tritonserver that can be started.

    Attributes:
        cache_directory: the folder of response caches for `--cache-config`; it need not exist.
    """

    executable: Path
    backend_directory: Path
    cache_directory: Path
    environment: Mapping[str, str] = field(repr=False)


def prepare_triton(run_directory: Path, tritonserver: Path | None, backend_directory: Path | None) -> Triton:
    """Find Triton and write the files for one run into `run_directory`."""
    if backend_directory is not None and not Path(backend_directory).is_dir():
        raise ConfigurationError(f"no such backend directory: {backend_directory}")
    if tritonserver is not None:
        return _installed_triton(Path(tritonserver), backend_directory)
    return _wheel_triton(run_directory, backend_directory)


def _installed_triton(location: Path, backend_directory: Path | None) -> Triton:
    executable = location if location.is_file() else location / "bin" / "tritonserver"
    if not os.access(executable, os.X_OK) or executable.is_dir():
        raise ConfigurationError(f"no Triton at {location}: expected an executable {executable}")
    root = executable.resolve().parent.parent
    backends = Path(backend_directory or root / "backends")
    if not backends.is_dir():
        raise ConfigurationError(f"{root} has no backends folder: name one with --backend-directory")
    environment = dict(os.environ)
    process.turn_off_telemetry(environment)
    environment["LD_LIBRARY_PATH"] = _join(root / "lib", environment.get("LD_LIBRARY_PATH"))
    return Triton(executable.resolve(), backends.resolve(), root / "caches", environment)


def _wheel_triton(run_directory: Path, backend_directory: Path | None) -> Triton:
    package = find_wheel()
    names = PlainNames(run_directory / "links")
    server = names.of(package) / "tritonserver"
    environment = _wheel_environment(package, run_directory, names)
    backends = Path(backend_directory).resolve() if backend_directory else run_directory / "backends"
    if backend_directory is None:
        _assemble_backends(server, backends)
    return Triton(server / "bin" / "tritonserver", backends, server / "caches", environment)


def find_wheel() -> Path:
    """Return the folder of the installed `pytriton` package, without importing it (which takes a second)."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        where = f"{platform.system()} {platform.machine()}"
        needs = f"Linux on {' or '.join(MACHINES)}"
        raise LocalServerError(f"the local server needs {needs}, this is {where}: {DOCKER_HINT}")
    if _python_version() not in PYTHONS:
        raise _wrong_python(PYTHONS)
    spec = find_package("pytriton")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(f"the local server needs the nvidia-pytriton wheel: {install('local')}")
    package = Path(spec.origin).parent
    if not (package / "tritonserver" / "bin" / "tritonserver").is_file():
        raise MissingDependencyError(f"{package} holds no tritonserver: {install('local')} --force-reinstall")
    stubs = package / "tritonserver" / "python_backend_stubs"
    if not (stubs / _python_version() / "triton_python_backend_stub").is_file():
        raise _wrong_python(sorted(path.name for path in stubs.glob("3.1*")))
    numpy = importlib.metadata.version("numpy")
    if not numpy.startswith("1."):  # the wheel's Python backend crashes at the first array
        raise LocalServerError(f"nvidia-pytriton needs numpy<2, this is numpy {numpy}: {install('local')}")
    return package


def _wrong_python(supported: Sequence[str]) -> LocalServerError:
    return LocalServerError(
        f"the local server needs Python {', '.join(supported)}, for which nvidia-pytriton has a wheel; "
        f"this is {_python_version()}: use another Python (`uv venv --python {PYTHONS[-1]}`, then "
        f"`uv {install('local')}`), or {DOCKER_HINT}"
    )


def find_libpython() -> Path:
    """Return this interpreter's shared libpython, which Triton's Python backend embeds."""
    name = f"libpython{_python_version()}.so.1.0"
    mapped = _mapped_library(name)
    if mapped is not None:
        return mapped
    # A statically linked interpreter (Debian, conda, uv) often has the library beside it nevertheless.
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    base = Path(sys.base_prefix)
    folders = [Path(sysconfig.get_config_var("LIBDIR") or "/nowhere"), base / "lib", base / "lib" / multiarch]
    folders += [Path("/usr/lib") / multiarch, Path("/usr/lib64"), Path("/usr/local/lib")]
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise LocalServerError(
        f"Triton needs {name} and the Python at {sys.base_prefix} has none: install it (Debian: apt install "
        f"{name.partition('.so')[0]}; pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared) or use a Python of uv or conda"
    )


def _mapped_library(name: str) -> Path | None:
    try:
        lines = os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines()
    except OSError:
        return None
    paths = (Path(line.split(maxsplit=5)[-1]) for line in lines if line.endswith(name))
    return next((path for path in paths if path.is_file()), None)


def _assemble_backends(server: Path, backends: Path) -> None:
    # Copies, because Triton refuses a backend library that resolves to a path outside the backend directory.
    python = backends / "python"
    python.mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copyfile(server / "backends" / "python" / name, python / name)
    stub = server / "python_backend_stubs" / _python_version() / "triton_python_backend_stub"
    shutil.copyfile(stub, python / stub.name)
    (python / stub.name).chmod(0o755)
    copy_own_backends(backends)


def copy_own_backends(backends: Path) -> None:
    """Copy this package's backends into a folder, with the file that they share with the package."""
    shutil.copytree(OWN_BACKENDS, backends, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(onnx_session.__file__, backends / "onnxruntime")


def _wheel_environment(package: Path, run_directory: Path, names: PlainNames) -> dict[str, str]:
    libpython = find_libpython()
    libraries = run_directory / "lib"
    libraries.mkdir()
    (libraries / libpython.name).symlink_to(libpython)
    environment = dict(os.environ)
    process.turn_off_telemetry(environment)
    conda = [names.of(libpython.parent)] if (Path(sys.base_prefix) / "conda-meta").is_dir() else []
    # conda's packages need conda's libstdc++, which is newer than the system's. Elsewhere only libpython is put on the
    # path, not its whole folder, whose libraries may have the same names as the system's.
    paths = [libraries, names.of(package.parent / "nvidia_pytriton.libs"), *conda]
    environment["LD_LIBRARY_PATH"] = _join(*paths, environment.get("LD_LIBRARY_PATH"))
    environment["PATH"] = _join(_make_environment(run_directory / "python", names), environment.get("PATH"))
    # glibc keeps freed memory for each thread: after images of 12 and 80 megapixels from four clients, a session model
    # held 1.2 GB instead of 0.7 GB, in the same time.
    environment.setdefault("MALLOC_ARENA_MAX", "2")
    environment["TMPDIR"] = str(run_directory)  # Python in the processes of models opens only plain paths
    return environment


def _make_environment(folder: Path, names: PlainNames) -> Path:
    """Create a virtual environment of symbolic links with this interpreter's packages; return its bin folder.

    The interpreter embedded in the stub has no argv[0]: it looks for `python3` on the PATH and derives its prefix from
    that. It runs isolated, so it ignores PYTHONPATH, PYTHONHOME and packages in the user's home. A .pth file adds the
    packages that this program finds (see `stub_path`).
    """
    base = _plain_python(names)
    packages = folder / "lib" / f"python{_python_version()}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(base)
    settings = f"home = {base.parent}\ninclude-system-site-packages = false\n"
    (folder / "pyvenv.cfg").write_text(settings, encoding="utf-8")
    paths = [Path(path) for path in sys.path if Path(path).is_dir() and Path(path).is_absolute()]
    # A source checkout comes last: models may import triton_sam, but its other folders must not hide packages.
    folders = dict.fromkeys(str(names.of(path)) for path in [*paths, PACKAGE_ROOT.parent])
    module = packages / "triton_sam_stub_path.py"
    shutil.copyfile(stub_path.__file__, module)
    module.with_suffix(".json").write_text(strict_json.dumps(list(folders)), encoding="ascii")
    module.with_suffix(".pth").write_text(f"import {module.stem}\n", encoding="ascii")
    return folder / "bin"


def _plain_python(names: PlainNames) -> Path:
    """Return a plain path to this interpreter from which Python finds its standard library."""
    base = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    prefix = Path(sys.base_prefix).resolve()
    return names.of(prefix) / base.relative_to(prefix) if base.is_relative_to(prefix) else names.of(base)


def _join(*paths: str | Path | None) -> str:
    return os.pathsep.join(str(path) for path in paths if path)


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
