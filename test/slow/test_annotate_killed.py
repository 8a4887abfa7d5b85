"""`annotate` is killed with SIGKILL at random moments: it loses nothing that it reported, and doubles nothing."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.annotated import files_of, kept_ids

pytestmark = pytest.mark.slow


def start_large(slide: Path, out: Path) -> subprocess.Popen[str]:
    """Cut a slide into 420 tiles. The client of this process finds the objects by their colours."""
    options = ["--tile", "96", "--overlap", "24", "--format", "geojson", "coco-polygons"]
    words = ["annotate", str(slide), "--large", "--with", "everything", "--out", str(out), *options]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-m", "support.large_run", *words], env=path, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.nightly)])
def test_tiles_of_a_run_that_is_killed_often_equal_those_of_an_undisturbed_one(kills: int, tmp_path: Path) -> None:
    pytest.importorskip("tifffile")
    pytest.importorskip("zarr")
    from support.large_images import draw, write_tiff

    objects = [(700, 905, 1100, 1300), (60, 60, 100, 90), (1150, 20, 1200, 60), (300, 300, 340, 900)]
    slide = write_tiff(tmp_path / "slide.tif", draw(objects, (1500, 1400)))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    begin = time.monotonic()
    with start_large(slide, whole) as process:
        while not (whole / "manifest.json").exists():
            time.sleep(0.005)
        until_work = time.monotonic() - begin
        process.communicate()
    assert process.returncode == 0
    chance = random.Random(kills)
    reported = done = 0
    for number in range(kills):
        with start_large(slide, killed) as process:
            if number % 2:  # on a machine of any speed, this kill falls into the work
                while len(kept_ids(killed)) == done and process.poll() is None:
                    time.sleep(0.005)
            else:
                time.sleep(until_work + chance.uniform(-0.05, 0.2))
            process.kill()
            _, printed = process.communicate()
        assert process.returncode == -9
        reported = max([reported, *(int(count) for count in re.findall(r"(\d+)/420 ", printed))])
        before, done = done, len(kept_ids(killed))
        assert done >= max(before, reported), "a tile that was reported is lost"
    assert 0 < done < 420, "the kills did not fall into the work"
    with start_large(slide, killed) as process:
        process.communicate()
    assert process.returncode == 0
    assert files_of(killed) == files_of(whole)
    assert len(json.loads((killed / "coco_polygons.json").read_text())["annotations"]) == len(objects)
