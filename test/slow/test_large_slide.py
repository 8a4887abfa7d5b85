"""A slide of 40,000 x 40,000 pixels with 2,025 discs: none is doubled or lost, borders of tiles do not matter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from triton_sam.masks.segment import Segment
from triton_sam.tiles import LargeImageClient, LargeObject, open_large_image

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("zarr")
cv2 = pytest.importorskip("cv2")

SIDE, PITCH, COUNT, TILE, OVERLAP = 40_000, 880, 45, 1024, 256
BLOCK = 2000
MEMORY = 2e9

pytestmark = pytest.mark.slow

Discs = np.ndarray[Any, np.dtype[np.float64]]


def discs() -> Discs:
    """Return x, y and radius of each disc."""
    random = np.random.default_rng(7)
    centres = (np.indices((COUNT, COUNT)).reshape(2, -1).T + 0.5) * PITCH + random.uniform(-300, 300, (COUNT**2, 2))
    return np.column_stack([centres, random.uniform(20, 110, COUNT**2)])


def inside(disc: Any, left: int, top: int, width: int, height: int) -> Any:
    y, x = np.ogrid[top : top + height, left : left + width]
    return (x + 0.5 - disc[0]) ** 2 + (y + 0.5 - disc[1]) ** 2 <= disc[2] ** 2


def blocks(found: Discs, side: int) -> Iterator[Any]:
    """Yield the slide in blocks, row by row."""
    for top in range(0, SIDE, side):
        for left in range(0, SIDE, side):
            block = np.full((side, side), 30, np.uint8)
            x, y, radius = found.T
            near = (x + radius > left) & (x - radius < left + side) & (y + radius > top) & (y - radius < top + side)
            for disc in found[near]:
                block[inside(disc, left, top, side, side)] = 200
            yield block


class PartsClient:
    """A client whose objects are the connected bright parts of a tile."""

    def everything(self, pixels: Any) -> list[Segment]:
        count, labels = cv2.connectedComponents((pixels[:, :, 0] > 100).astype(np.uint8))
        return [Segment(labels == number, 0.9, None) for number in range(1, count)]


def iou(found: LargeObject, disc: Any) -> float:
    x1, y1, x2, y2 = found.region
    truth = inside(disc, x1, y1, x2 - x1, y2 - y1)
    whole = np.pi * disc[2] ** 2  # also of the part outside of the object's box
    common = float((found.mask & truth).sum())
    return common / (whole + found.area - common)


@pytest.mark.timeout(1200)
def test_a_slide_with_two_thousand_objects(tmp_path: Path) -> None:
    truth = discs()
    path = tmp_path / "slide.tif"
    tifffile.imwrite(
        path,
        blocks(truth, 2000),
        shape=(SIDE, SIDE),
        dtype=np.uint8,
        tile=(2000, 2000),
        compression="lzw",
        bigtiff=True,
    )
    process = psutil.Process()
    before = most = process.memory_info().rss  # earlier tests of this process have left theirs

    def watch(done: int, total: int) -> None:
        nonlocal most
        most = max(most, process.memory_info().rss)

    with open_large_image(path) as image:
        client: Any = PartsClient()
        found = LargeImageClient(client, image).everything(tile=TILE, overlap=OVERLAP, progress=watch)
    assert most - before < MEMORY
    assert len(found) == len(truth)
    places = np.array([each.box for each in found])
    centres = (places[:, :2] + places[:, 2:]) / 2
    nearest = [int(np.argmin(((truth[:, :2] - centre) ** 2).sum(axis=1))) for centre in centres]
    assert sorted(nearest) == list(range(len(truth)))
    values = np.array([iou(each, truth[number]) for each, number in zip(found, nearest, strict=True)])
    starts = np.arange(0, SIDE, TILE - OVERLAP)  # close to where tiles begin
    crosses = np.array([any(((box[:2] < start) & (start < box[2:])).any() for start in starts) for box in places])
    assert 200 < crosses.sum() < len(found) - 200
    assert abs(values[crosses].mean() - values[~crosses].mean()) < 0.01
    assert values.min() > 0.95
