"""`annotate --engine ray` of images and of tiles, without a server: the same bytes after any kill."""

import contextlib
import math
import os
import random
import re
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.annotated import files_of, kept_ids, write_data_set
from support.large_images import draw, write_tiff
from support.processes import all_gone
from support.uv_environment import make_environment

ROOT = Path(__file__).parents[2]
STAND_INS = ["-c", "from support.ray_run import main; main()"]
"""Arguments of Python for `triton-sam` without a server."""
NO_UV = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
"""Otherwise, Ray recreates the environment for each of its processes."""


@pytest.fixture(scope="module")
def ray_python(tmp_path_factory):
    """Return a Python with Ray, whose NumPy differs from the local server's; skip if it cannot be installed."""
    packages = ["-r", str(ROOT / "pyproject.toml"), "--extra", "ray", "--extra", "tiles", "pytest"]
    return make_environment(tmp_path_factory.mktemp("ray") / "venv", packages)


def start(python: Path, words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start Python with arguments in a folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "test"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **NO_UV, "PYTHONPATH": path}
    return subprocess.Popen([str(python), *words], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)


def actors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the actors of Ray below a process."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):  # processes may end meanwhile
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "MapWorker" in " ".join(child.cmdline()):
                    found.append(child)
    return found


IMAGES = 480
OBJECTS = [(700, 905, 1100, 1300), (60, 60, 100, 90), (1150, 20, 1200, 60), (300, 300, 340, 900)]
TILES = ["--tile", "96", "--overlap", "24", "--format", "geojson", "coco-polygons"]
RAY = ["--engine", "ray", "--actors"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TRITON_SAM_RAY" not in os.environ, reason="takes minutes: set TRITON_SAM_RAY=1"),
]


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
    return start(python, [*STAND_INS, *words, "--out", str(out), *options], out.parent)


def finish(process: subprocess.Popen[str]) -> None:
    _, printed = process.communicate()
    assert process.returncode == 0, printed[-2000:]


def wait_for_work(process: subprocess.Popen[str], out: Path, done: int = 0, seconds: float = math.inf) -> float:
    """Wait until more than some images are kept, the process has ended, or a time is over; return the seconds."""
    begin = time.monotonic()
    while len(kept_ids(out)) <= done and process.poll() is None and time.monotonic() - begin < seconds:
        time.sleep(0.01)
    return time.monotonic() - begin


@pytest.mark.timeout(900)
def test_one_and_two_actors_write_the_bytes_of_threads(ray_python, words, whole, tmp_path):
    for number in ("1", "2"):
        finish(run(ray_python, words, tmp_path / number, *RAY, number))
        assert files_of(tmp_path / number) == files_of(whole)


@pytest.mark.timeout(900)
def test_a_killed_actor_changes_no_byte(ray_python, words, whole, tmp_path):
    out = tmp_path / "out"
    with run(ray_python, words, out, *RAY, "2") as process:
        wait_for_work(process, out)
        actors(process)[0].kill()
        assert len(kept_ids(out)) < len(kept_ids(whole)), "the actor was killed after the work"
        finish(process)
    assert files_of(out) == files_of(whole)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_command_that_is_killed_often_changes_no_byte(ray_python, words, whole, tmp_path, kills):
    out = tmp_path / "out"
    chance = random.Random(kills)
    until_work = 0.0
    states = [0]
    left: list[psutil.Process] = []
    for number in range(kills):
        process = run(ray_python, words, out, *RAY, "2")
        if number % 2:  # at any moment: while Ray starts, while images are annotated, or while a shard is written
            wait_for_work(process, out, states[-1], chance.uniform(0, until_work))
            time.sleep(chance.uniform(0, 0.3))
        else:  # on a machine of any speed, this kill falls into the work
            until_work = wait_for_work(process, out, states[-1])
        left += actors(process)  # agents of Ray, which write nothing, may take a minute to end
        process.kill()
        _, printed = process.communicate()
        states.append(len(kept_ids(out)))
        reported = max([0, *(int(count) for count in re.findall(r"(\d+)/\d+ ", printed))])
        assert states[-1] >= max(states[-2], reported), "an image that was reported is lost"
    assert all_gone(left), "an actor outlived the command"
    print(f"{until_work:.1f} s until a shard; kept after each kill: {states[1:]}")
    in_time = sum(state < len(kept_ids(whole)) for state in states[1:])
    assert in_time >= 0.9 * kills, f"{kills - in_time} kills came after the work"
    finish(run(ray_python, words, out, *RAY, "2"))
    assert files_of(out) == files_of(whole)
