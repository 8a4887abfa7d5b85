"""`annotate --engine ray` on this machine: the same files with one and with two actors, one of them killed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.annotated import files_of
from support.drawn_data_set import write_scenes

from triton_sam._common.bundle import bundled
from triton_sam.local_server import LocalServer

SCENES = 40
PACKAGES = ["ray[data]>=2.40", "tritonclient[grpc]", "tqdm", "filelock>=4", "pillow", "urllib3"]
NO_UV = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
"""Otherwise Ray makes the environment again for each of its processes."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TRITON_SAM_RAY" not in os.environ, reason="takes minutes: set TRITON_SAM_RAY=1"),
]


@pytest.fixture(scope="module")
def python() -> list[str]:
    """Return the command of a Python with Ray, which needs another NumPy than the local server."""
    if importlib.util.find_spec("uv") is None:
        pytest.skip("needs uv, which brings Ray: pip install uv")
    packages = [word for package in PACKAGES for word in ("--with", package)]
    command = [sys.executable, "-m", "uv", "run", "-q", "--no-project", "--python", sys.executable, *packages, "python"]
    if subprocess.run([*command, "-c", "import ray.data"], check=False, capture_output=True).returncode:
        pytest.skip("Ray cannot be installed here")
    return command


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cv2")
    return write_scenes(tmp_path_factory.mktemp("scenes") / "in", SCENES)


def start(python: list[str], scenes: Path, out: Path, url: str, *options: str) -> subprocess.Popen[bytes]:
    words = ["-m", "triton_sam", "annotate", str(scenes), "--with", "boxes", "--out", str(out), "--url", url, "-q"]
    path = os.pathsep.join([str(bundled("triton_sam").parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **NO_UV, "PYTHONPATH": path.rstrip(os.pathsep)}
    return subprocess.Popen([*python, *words, *options], env=environment, cwd=out.parent)


def actors(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended in the meantime
            if "MapWorker" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.mark.timeout(900)
def test_ray_writes_the_same_files_even_if_an_actor_dies(
    python: list[str], scenes: Path, service_triton: LocalServer, tmp_path: Path
) -> None:
    url = service_triton.grpc_url
    ray = ["--engine", "ray"]
    with start([sys.executable], scenes, tmp_path / "threads", url) as process:
        assert process.wait() == 0
    with start(python, scenes, tmp_path / "one", url, *ray, "--actors", "1") as process:
        assert process.wait() == 0
    with start(python, scenes, tmp_path / "two", url, *ray, "--actors", "2") as process:
        shards = tmp_path / "two" / "shards"
        while process.poll() is None and not list(shards.glob("0*")):
            time.sleep(0.1)
        killed = 0
        while process.poll() is None and not killed:
            for actor in actors(process)[:1]:
                actor.kill()
                killed += 1
        assert killed, "the run ended before an actor could be killed"
        assert process.wait() == 0
    expected = files_of(tmp_path / "threads")
    assert files_of(tmp_path / "one") == expected
    assert files_of(tmp_path / "two") == expected


@pytest.mark.timeout(300)
def test_a_lost_server_is_one_error(python: list[str], scenes: Path, tmp_path: Path) -> None:
    code = (
        "from triton_sam import cli\n"
        "from triton_sam.annotate import job\n"
        "job.Job.manifest = lambda *_: {}\n"  # the server is lost after the start of the run
        "raise SystemExit(cli.main())\n"
    )
    command = [*python, "-c", code, "annotate", str(scenes), "--with", "boxes", "--out", str(tmp_path / "out"), "-q"]
    environment = {**os.environ, **NO_UV, "PYTHONPATH": str(bundled("triton_sam").parent)}
    ended = subprocess.run(
        [*command, "--url", "grpc://localhost:9", "--engine", "ray"],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert ended.returncode == 1
    errors = [line for line in ended.stderr.splitlines() if line.startswith("triton-sam: error:")]
    assert len(errors) == 1
    assert "localhost:9" in errors[0]
    assert "Traceback" not in ended.stderr
