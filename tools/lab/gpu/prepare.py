"""Prepare everything that a measurement on a GPU machine without internet needs, as parts of a limited size.

Needs the extra `export` and pip. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CHECKPOINT = "sam2.1_hiera_micro.pt"
RUNTIME = "onnxruntime-gpu==1.31.1"
WHEELS = (
    "nvidia-pytriton==0.7.0",
    "numpy==1.26.4",  # nvidia-pytriton needs NumPy below 2, which needs these two
    "ml_dtypes==0.5.4",
    "protobuf==6.33.6",
    "grpcio==1.85.1",
    "tritonclient",
    "python-rapidjson",
    "filelock",
    "tqdm",
    "urllib3",
    "contourpy",
    "sam2==1.1.0",
    "hydra-core",
    "omegaconf",
    "antlr4-python3-runtime==4.9.3",
    "iopath",
    "portalocker",
    "onnx==1.23.2",
    "PyYAML",
    "packaging",
    "typing_extensions",
)
PLATFORMS = ("2_17", "2_27", "2_28", "2_34", "2_35")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the parts go")
    parser.add_argument("--python", type=Path, required=True, help="prefix of a Python 3.12 with a shared libpython")
    parser.add_argument(
        "--backend", type=Path, help="folder with a built libtriton_onnxruntime.so, for the C++ backend"
    )
    parser.add_argument("--part-mb", type=int, default=56, help="largest size of a part in MB (default: 56)")
    arguments = parser.parse_args()
    work = arguments.folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    archives = [
        make(work / "site.tar.xz", lambda folder: collect_wheels(folder, WHEELS)),
        make(work / "python.tar.xz", lambda folder: copy_python(arguments.python, folder)),
        make(work / "runtime.tar.xz", lambda folder: collect_wheels(folder, (RUNTIME,))),
    ]
    project = work / "project.tar.xz"
    project.unlink(missing_ok=True)  # always rebuilt from the current state
    archives.append(make(project, lambda folder: copy_project(folder, arguments.backend)))
    split(archives, arguments.folder / "parts", arguments.part_mb * 10**6)


def make(archive, fill_folder):
    """Create an archive of a folder that a function fills, unless the archive exists."""
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=archive.parent) as name:
            fill_folder(Path(name))
            temporary = archive.with_suffix(".part")
            with tarfile.open(temporary, "w:xz", preset=6) as tar:
                tar.add(name, archive.name.partition(".")[0])
            temporary.rename(archive)
    print(f"{archive} ({archive.stat().st_size / 1e6:.1f} MB)", flush=True)
    return archive


def collect_wheels(folder: Path, names: tuple[str, ...]) -> None:
    """Unpack wheels for Python 3.12 on Linux; build packages without wheels."""
    platforms = [f"--platform=manylinux_{version}_x86_64" for version in PLATFORMS] + [
        "--platform=manylinux2014_x86_64"
    ]
    pip = [sys.executable, "-m", "pip"]
    with tempfile.TemporaryDirectory() as wheels:
        for name in names:
            binary = [*pip, "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.12", *platforms]
            found = subprocess.run(
                [*binary, "--implementation=cp", "-d", wheels, name], check=False, stderr=subprocess.DEVNULL
            )
            if found.returncode:
                build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", wheels, name]
                subprocess.run(build, check=True, env={**os.environ, "SAM2_BUILD_CUDA": "0"})
        for wheel in Path(wheels).glob("*.whl"):
            shutil.unpack_archive(wheel, folder, "zip")
    for data in folder.glob("*.data"):
        shutil.rmtree(data)


def copy_python(prefix: Path, folder: Path) -> None:
    """Copy a Python without its tests and static libraries."""
    ignored = shutil.ignore_patterns(
        "test", "tests", "idlelib", "__pycache__", "*.a", "site-packages", "share", "ensurepip"
    )
    shutil.copytree(prefix, folder, symlinks=True, dirs_exist_ok=True, ignore=ignored)


def copy_project(folder: Path, backend: Path | None) -> None:
    """Copy the package, the demo model's checkpoint, this folder's programs, and the C++ backend."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "triton_sam", folder / "triton_sam", ignore=ignored)
    shutil.copytree(HERE, folder / "gpu", ignore=ignored)
    shutil.copy(ROOT / "checkpoints" / CHECKPOINT, folder)
    shutil.copytree(ROOT / "test" / "images", folder / "images", ignore=ignored)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (folder / "COMMIT").write_text(commit)
    if backend is not None:
        shutil.copytree(backend, folder / "backend")


def split(archives: list[Path], folder: Path, limit: int) -> None:
    """Cut archives into numbered folders of at most `limit` bytes, with a list of checksums in the last one."""
    shutil.rmtree(folder, ignore_errors=True)
    number, room, lines = 1, limit, []
    for archive in archives:
        with archive.open("rb") as stream:
            index = 0
            while block := stream.read(room):
                target = folder / f"{number:02}" / f"{archive.name}.{index:02}"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(block)
                lines.append(f"{hashlib.sha256(block).hexdigest()}  {target.name}\n")
                index, room = index + 1, room - len(block)
                if room == 0:
                    number, room = number + 1, limit
    (folder / f"{number:02}" / "SHA256SUMS").write_text("".join(lines))
    print(f"{number} parts of at most {limit / 1e6:.0f} MB in {folder}")


if __name__ == "__main__":
    main()
