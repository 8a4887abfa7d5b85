"""A slide of 40,000 x 40,000 pixels with 2,025 discs: none is doubled or lost, borders of tiles do not matter."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from support.commands import with_support

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("zarr")

SIDE, PITCH, TILE, OVERLAP = 40_000, 880, 1024, 256
BLOCK = 2000
MEMORY = 2e9
"""Bytes that a client may take."""
GROUND = 40

pytestmark = pytest.mark.slow

Discs = np.ndarray[Any, np.dtype[np.float64]]


def discs(side: int) -> Discs:
    """Return x, y, radius and grey of each disc. Discs that one tile shows have different greys."""
    random = np.random.default_rng(7)
    grid = np.indices((side // PITCH, side // PITCH)).reshape(2, -1).T
    centres = (grid + 0.5) * PITCH + random.uniform(-300, 300, grid.shape)
    greys = 100 + 10 * (grid[:, 0] % 4 * 4 + grid[:, 1] % 4)
    return np.column_stack([centres, random.uniform(20, 110, len(grid)), greys])


def inside(disc: Any, left: int, top: int, width: int, height: int) -> Any:
    y, x = np.ogrid[top : top + height, left : left + width]
    return (x + 0.5 - disc[0]) ** 2 + (y + 0.5 - disc[1]) ** 2 <= disc[2] ** 2


def blocks(found: Discs, side: int) -> Iterator[Any]:
    """Yield the slide in blocks, row by row."""
    x, y, radius, _ = found.T
    for top in range(0, side, BLOCK):
        for left in range(0, side, BLOCK):
            block = np.full((BLOCK, BLOCK), GROUND, np.uint8)
            near = (x + radius > left) & (x - radius < left + BLOCK) & (y + radius > top) & (y - radius < top + BLOCK)
            for disc in found[near]:
                block[inside(disc, left, top, BLOCK, BLOCK)] = disc[3]
            yield block


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    """A function that returns a slide with a side of so many pixels."""
    folder = tmp_path_factory.mktemp("slides")

    def write(side: int) -> Path:
        path = folder / f"{side}.tif"
        if not path.exists():
            options: dict[str, Any] = {"tile": (BLOCK, BLOCK), "compression": "lzw", "bigtiff": True}
            tifffile.imwrite(path, blocks(discs(side), side), shape=(side, side), dtype=np.uint8, **options)
        return path

    return write


def iou(box: Any, mask: Any, disc: Any) -> float:
    """Compare an object with its mask inside a box with a disc."""
    x1, y1, x2, y2 = box
    truth = inside(disc, x1, y1, x2 - x1, y2 - y1)
    whole = np.pi * disc[2] ** 2  # also of the part outside of the object's box
    common = float((mask & truth).sum())
    return common / (whole + mask.sum() - common)


def check(found: list[tuple[Any, Any]], truth: Discs, side: int) -> None:
    """Check objects, each a box and the mask inside it: none is lost or doubled, or worse at a border of tiles."""
    assert len(found) == len(truth)
    places = np.array([box for box, _ in found])
    centres = (places[:, :2] + places[:, 2:]) / 2
    nearest = [int(np.argmin(((truth[:, :2] - centre) ** 2).sum(axis=1))) for centre in centres]
    assert sorted(nearest) == list(range(len(truth)))
    values = np.array([iou(*each, truth[number]) for each, number in zip(found, nearest, strict=True)])
    starts = np.arange(0, side, TILE - OVERLAP)  # close to where tiles begin
    crosses = np.array([any(((box[:2] < start) & (start < box[2:])).any() for start in starts) for box in places])
    print(f"{len(found)} objects, {crosses.sum()} on borders: mean IoU", end=" ")
    print(f"{values[crosses].mean():.5f} there, {values[~crosses].mean():.5f} elsewhere, at least {values.min():.4f}")
    assert len(found) / 10 < crosses.sum() < 9 * len(found) / 10
    assert abs(values[crosses].mean() - values[~crosses].mean()) < 0.01
    assert values.min() > 0.95


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("side", [10_000, pytest.param(SIDE, marks=pytest.mark.nightly)])
def test_the_command_annotates_a_slide_with_many_objects(slide, side, tmp_path):
    """The client of this process finds objects by their greys."""
    words = ["annotate", str(slide(side)), "--large", "--with", "everything", "--out", str(tmp_path / "out"), "-q"]
    peak = tmp_path / "peak"
    words += ["--tile", str(TILE), "--overlap", str(OVERLAP)]
    command = [sys.executable, "-m", "support.large_run", *words]
    subprocess.run(command, env=with_support(PEAK_FILE=str(peak)), check=True)
    memory = int(peak.read_text())
    print(f"{memory / 1e9:.2f} GB", end=", ")
    assert memory < MEMORY
    features = json.loads((tmp_path / f"out/geojson/{side}.geojson").read_text())["features"]
    check([drawn(each) for each in features], discs(side), side)


def drawn(feature: dict[str, Any]) -> tuple[Any, Any]:
    """Return the box and the mask of a GeoJSON feature."""
    ((corners, *holes),) = feature["geometry"]["coordinates"]
    assert not holes
    low, high = np.floor(np.min(corners, axis=0)).astype(int), np.ceil(np.max(corners, axis=0)).astype(int)
    fine = np.zeros(4 * (high - low)[::-1], np.uint8)
    cv2.fillPoly(fine, [np.rint(4 * (np.array(corners) - low)).astype(np.int32)], 1)
    mask = fine[2::4, 2::4].astype(bool)  # the centres of pixels
    assert mask.sum() == pytest.approx(feature["properties"]["area"], rel=0.05)  # outlines leave out some corners
    return (*low, *high), mask
