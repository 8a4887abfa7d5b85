"""Join the parts on the GPU machine, check them, and unpack them: `python3 assemble.py PARTS TARGET`.

Writes TARGET/environment.sh, which sets the paths for measure.py. Requires only the standard library, and a PyTorch for
its CUDA libraries.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import importlib.util
import shutil
import sys
import tarfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", type=Path, help="folder with all files of all parts")
    parser.add_argument("target", type=Path, help="folder to create")
    arguments = parser.parse_args()
    # environment.sh contains the path, and must be valid in every working directory.
    parts, target = arguments.parts, arguments.target.absolute()
    if not (parts / "SHA256SUMS").is_file():
        sys.exit(f"{parts} has no SHA256SUMS: copy the files of all parts into this folder")
    if (torch := importlib.util.find_spec("torch")) is None:
        sys.exit(f"{sys.executable} has no PyTorch: start this program with the Python that has it")
    target.mkdir(parents=True, exist_ok=True)
    archives: dict[str, list[Path]] = {}
    for line in (parts / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        if not (parts / name).is_file():
            sys.exit(f"{parts} has no {name}: copy the files of all parts into this folder")
        if hashlib.sha256((parts / name).read_bytes()).hexdigest() != digest:
            sys.exit(f"{name} is damaged: send its part again")
        archives.setdefault(name.rpartition(".")[0], []).append(parts / name)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda item: unpack(item[0], item[1], target), archives.items()))
    server = target / "site" / "pytriton" / "tritonserver"
    for program in [server / "bin" / "tritonserver", *server.rglob("triton_python_backend_stub")]:
        program.chmod(0o755)  # unpacking a wheel as an archive loses this
    backends(target)
    packages = Path(torch.origin).parent.parent
    libraries = [
        target / "python" / "lib",
        *sorted((packages / "nvidia").glob("*/lib")),
        target / "backends" / "onnxruntime",
    ]
    (target / "environment.sh").write_text(
        f"export LD_LIBRARY_PATH={':'.join(map(str, libraries))}:$LD_LIBRARY_PATH\n"
        f"export PYTHONPATH={target}/runtime:{target}/site:{target}/project:{packages}\n"
        f"export PATH={target}/python/bin:$PATH PYTHONUNBUFFERED=1\n"
    )
    print(f"assembled in {target}; torch in {packages}")


def unpack(name: str, pieces: list[Path], target: Path) -> None:
    """Unpack one archive from its pieces."""
    whole = target / name
    with whole.open("wb") as stream:
        for piece in pieces:
            shutil.copyfileobj(piece.open("rb"), stream)
    with tarfile.open(whole) as archive:
        archive.extractall(target, filter="fully_trusted")
    whole.unlink()


def backends(target: Path) -> None:
    """Create a folder of Triton's backends with NVIDIA's C++ backend for ONNX, if it is in the archives."""
    built = target / "project" / "backend"
    if not built.is_dir():
        return
    server = target / "site" / "pytriton" / "tritonserver"
    python, onnx = target / "backends" / "python", target / "backends" / "onnxruntime"
    python.mkdir(parents=True, exist_ok=True)
    for file in [
        *(server / "backends" / "python").iterdir(),
        server / "python_backend_stubs" / "3.12" / "triton_python_backend_stub",
    ]:
        shutil.copy(file, python / file.name)
    (python / "triton_python_backend_stub").chmod(0o755)
    shutil.copytree(built, onnx, dirs_exist_ok=True)
    for library in (target / "runtime" / "onnxruntime" / "capi").glob("libonnxruntime*"):
        shutil.copy(library, onnx / library.name)
    runtime = next(onnx.glob("libonnxruntime.so.1.*"))
    runtime.rename(onnx / "libonnxruntime.so.1")


if __name__ == "__main__":
    main()
