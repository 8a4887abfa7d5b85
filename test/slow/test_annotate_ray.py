"""`annotate --engine ray` on this machine: the same files with one and with two actors, one of them killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.annotated import files_of
from support.drawn_data_set import write_scenes
from support.ray_processes import actors, ray_python, start

from triton_sam.local_server import LocalServer

__all__ = ["ray_python"]

SCENES = 40

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TRITON_SAM_RAY" not in os.environ, reason="takes minutes: set TRITON_SAM_RAY=1"),
]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cv2")
    return write_scenes(tmp_path_factory.mktemp("scenes") / "in", SCENES)


def run(python: Path, scenes: Path, out: Path, url: str, *options: str) -> subprocess.Popen[str]:
    words = ["-m", "triton_sam", "annotate", str(scenes), "--with", "boxes", "--out", str(out), "--url", url, "-q"]
    return start(python, [*words, *options], out.parent)


@pytest.mark.timeout(900)
def test_ray_writes_the_same_files_even_if_an_actor_dies(
    ray_python: Path, scenes: Path, service_triton: LocalServer, tmp_path: Path
) -> None:
    url = service_triton.grpc_url
    ray = ["--engine", "ray"]
    with run(Path(sys.executable), scenes, tmp_path / "threads", url) as process:
        assert process.wait() == 0
    with run(ray_python, scenes, tmp_path / "one", url, *ray, "--actors", "1") as process:
        assert process.wait() == 0
    with run(ray_python, scenes, tmp_path / "two", url, *ray, "--actors", "2") as process:
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
def test_a_lost_server_is_one_error(ray_python: Path, scenes: Path, tmp_path: Path) -> None:
    code = (
        "from triton_sam import cli\n"
        "from triton_sam.annotate import job\n"
        "job.Job.manifest = lambda *_: {}\n"  # the server is lost after the start of the run
        "raise SystemExit(cli.main())\n"
    )
    words = ["-c", code, "annotate", str(scenes), "--with", "boxes", "--out", str(tmp_path / "out"), "-q"]
    process = start(ray_python, [*words, "--url", "grpc://localhost:9", "--engine", "ray"], tmp_path)
    _, printed = process.communicate()
    assert process.returncode == 1
    errors = [line for line in printed.splitlines() if line.startswith("triton-sam: error:")]
    assert len(errors) == 1
    assert "localhost:9" in errors[0]
    assert "Traceback" not in printed
