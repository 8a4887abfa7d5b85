"""`annotate --engine ray` of images and of tiles, without a server: the same bytes with any number of actors."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.annotated import files_of, kept_ids, write_data_set
from support.large_images import draw, write_tiff
from support.uv_environment import make_environment

ROOT = Path(__file__).parents[2]
IMAGES = 480
OBJECTS = [(700, 905, 1100, 1300), (60, 60, 100, 90), (1150, 20, 1200, 60), (300, 300, 340, 900)]
TILES = ["--tile", "96", "--overlap", "24", "--format", "geojson", "coco-polygons"]
RAY = ["--engine", "ray", "--actors"]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def ray_python(tmp_path_factory):
    """Return a Python with Ray, whose NumPy differs from the local server's; skip if it cannot be installed."""
    packages = ["-r", str(ROOT / "pyproject.toml"), "--extra", "ray", "--extra", "tiles", "pytest"]
    return make_environment(tmp_path_factory.mktemp("ray") / "venv", packages)


@pytest.fixture(scope="module", params=["large", "images"])
def words(request, tmp_path_factory):
    """Return the arguments of a run with 480 images, or with a slide of 420 tiles."""
    folder = tmp_path_factory.mktemp("in")
    if request.param == "images":
        return ["annotate", str(write_data_set(folder, IMAGES)), "--with", "boxes"]
    slide = write_tiff(folder / "slide.tif", draw(OBJECTS, (1500, 1400)))
    return ["annotate", str(slide), "--large", "--with", "everything", *TILES]


@pytest.fixture(scope="module")
def whole(ray_python, words, tmp_path_factory):
    """Return the folder of an undisturbed run with threads."""
    folder = tmp_path_factory.mktemp("whole")
    finish(run(ray_python, words, folder / "out"))
    return folder / "out"


def run(python: Path, words: list[str], out: Path, *options: str) -> subprocess.Popen[str]:
    """Start `triton-sam` without a server."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "test"), os.environ.get("PYTHONPATH")]))
    # With uv's environment, Ray would recreate it for each of its processes.
    environment = {**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "PYTHONPATH": path}
    command = [str(python), "-c", "from support.ray_run import main; main()", *words, "--out", str(out), *options]
    return subprocess.Popen(command, env=environment, cwd=out.parent, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, printed = process.communicate()
    assert process.returncode == 0, printed[-2000:]


def actors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the actors of Ray below a process."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):  # processes may end meanwhile
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "MapWorker" in " ".join(child.cmdline()):
                    found.append(child)
    return found


def test_one_and_two_actors_write_the_bytes_of_threads(ray_python, words, whole, tmp_path):
    for number in ("1", "2"):
        finish(run(ray_python, words, tmp_path / number, *RAY, number))
        assert files_of(tmp_path / number) == files_of(whole)


def test_a_killed_actor_changes_no_byte(ray_python, words, whole, tmp_path):
    out = tmp_path / "out"
    with run(ray_python, words, out, *RAY, "2") as process:
        while not kept_ids(out) and process.poll() is None:
            time.sleep(0.01)
        actors(process)[0].kill()
        assert len(kept_ids(out)) < len(kept_ids(whole)), "the actor was killed after the work"
        finish(process)
    assert files_of(out) == files_of(whole)
