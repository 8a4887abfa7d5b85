"""The steps of the images, and the files that enter images and the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from triton_sam._common.bundle import checkout


def committed(root: Path, folder: str) -> set[str] | None:
    """Return the committed files of a folder; None without git or the repository."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z", folder], cwd=root, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return set(done.stdout.split("\0")) - {""}


def is_ignored(path: str, ignore_file: str) -> bool:
    """Return whether `docker build` ignores a file, by the rules of a .dockerignore.

    The last line that matches the file or one of its folders decides, and `!` negates it.
    https://docs.docker.com/build/concepts/context/#dockerignore-files
    """
    ignored = False
    places = [path, *map(str, PurePosixPath(path).parents)]
    for line in ignore_file.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        expression = _expression(pattern.removeprefix("!").strip("/"))
        if any(expression.fullmatch(place) for place in places):
            ignored = not pattern.startswith("!")
    return ignored


def _expression(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", pattern)
    meanings = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(part if part[:1] == "[" else meanings.get(part) or re.escape(part) for part in parts))


ROOT = checkout()
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IGNORE = (ROOT / ".dockerignore").read_text(encoding="utf-8")
LARGE = [
    "model_repository/sam1_encoder/1/model.onnx",
    "model_repository/sam2_encoder/2/model.onnx",
    "model_repository/sam2.1_large_encoder/1/model.onnx",
    "model_repository/sam2.1_large_encoder/config.pbtxt",
    "model_repository/sam3_decoder/10/model.onnx",
]
"""Files that exports and downloads leave beside the committed ones."""


@pytest.fixture(scope="module")
def repository() -> set[str]:
    found = committed(ROOT, ".")
    if found is None:
        pytest.skip("no git repository")
    return found


def test_the_build_context_has_the_committed_models_and_no_others(repository: set[str]) -> None:
    assert [path for path in LARGE if not is_ignored(path, IGNORE)] == []
    assert [path for path in repository if path.startswith("model_repository/") and is_ignored(path, IGNORE)] == []
    secrets = [".env", "deploy/nginx/tls/server.key", "deploy/nginx/tls-authority/ca.key", ".git/config"]
    assert [path for path in [*secrets, "checkpoints/sam2.1_hiera_large.pt"] if not is_ignored(path, IGNORE)] == []
    copied = {
        "pyproject.toml",
        "constraints.txt",
        "LICENSE",
        "README.md",
        "triton_sam/cli.py",
        "scripts/model_health.py",
    }
    assert [path for path in copied if is_ignored(path, IGNORE)] == []


def test_the_rules_of_docker() -> None:
    for lines, path, ignored in (
        ("a", "a/b/c", True),
        ("a\n!a/b/c", "a/b/c", False),
        ("a\n!a/b/c", "a/b/d", True),
        ("a/*", "a/b/c", True),
        ("a/*/c", "a/b/d", False),
        ("**/x", "x", True),
        ("**/x", "a/b/x", True),
        ("tls*", "tls-authority/ca.key", True),
        ("# a\n!a\na?", "ab", True),
        ("a/[2-9]*", "a/20/c", True),
        ("a/[2-9]*", "a/1/c", False),
    ):
        assert is_ignored(path, lines) is ignored, (lines, path)


def test_distributions_have_the_committed_models_and_no_others(repository: set[str], tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the test extra")
    here, parts = tmp_path / "checkout", ("triton_sam/", "model_repository/", "test/images/")
    for path in [*repository, *LARGE]:
        if path.startswith(parts) or "/" not in path:
            target = here / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if path in repository and (ROOT / path).is_file():
                shutil.copy(ROOT / path, target)
            else:
                target.write_bytes(bytes(1000))
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=here, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = {
        name.removeprefix("triton_sam/_bundle/") for name in zipfile.ZipFile(wheel).namelist() if "_bundle/" in name
    }
    assert names == {path for path in repository if path.startswith(("model_repository/", "test/images/"))}
    (source,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert files & set(LARGE) == set()
    assert {path for path in repository if path.startswith("model_repository/")} <= files


def stage(name: str) -> str:
    return DOCKERFILE.partition(f" AS {name}\n")[2].partition("\nFROM ")[0]


def test_every_image_installs_the_versions_of_the_tests() -> None:
    for name in ("export", "service", "triton"):
        (install,) = re.findall(r"pip install (.*)", stage(name))
        assert install.startswith("--constraint "), name
    assert '--extra-index-url "$TORCH_INDEX"' in stage("export")  # PyTorch without CUDA
    assert re.search(r"(?m)^ARG TORCH_INDEX=https://\S+/cpu$", stage("export"))


def test_the_numpy_of_the_image_stays(tmp_path: Path) -> None:
    """The step of the Dockerfile writes constraints that pip can use, with the version that the image has."""
    step = re.search(r"sed .*? >", stage("triton"))
    assert step is not None
    done = subprocess.run(
        ["bash", "-c", f"numpy=1.26.9; {step[0].rstrip(' >')}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    written = done.stdout.splitlines()
    assert [line for line in written if line.startswith("numpy")] == ["numpy==1.26.9"] * 2
    before = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in written if "numpy" not in line] == [
        line for line in before if not line.startswith("numpy")
    ]
