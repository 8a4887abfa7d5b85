"""A folder of small images with boxes in COCO's format and a client whose masks are the boxes."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.contents import files_below

from triton_sam.annotate import job
from triton_sam.client.server_models import FIXED_IMAGE
from triton_sam.concepts.instances import Instance
from triton_sam.errors import SamError
from triton_sam.families import get_family
from triton_sam.inputs.images import open_image
from triton_sam.inputs.prompts import check_prompts
from triton_sam.masks.segment import Segment

SIZE = (40, 30)
BOX: list[float] = [2, 3, 10, 8]
"""x, y, width, height of the box of each image."""


def write_images(folder: Path, count: int) -> list[Path]:
    """Write `000.png`, `001.png` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03}.png" for number in range(count)]
    for number, path in enumerate(paths):
        Image.new("RGB", SIZE, (number, 0, 0)).save(path)
    return paths


def coco(names: list[str], boxes: list[tuple[int, list[float]]] | None = None) -> dict[str, Any]:
    """Return a data set: image i + 1 is names[i]. ``boxes`` are image ids with boxes; None: BOX for each image."""
    images: list[dict[str, Any]] = [
        {"id": number, "file_name": name, "width": SIZE[0], "height": SIZE[1]} for number, name in enumerate(names, 1)
    ]
    pairs: list[tuple[int, list[float]]] = [(image["id"], BOX) for image in images] if boxes is None else boxes
    annotations = [
        {"id": number, "image_id": image, "category_id": 7, "bbox": box} for number, (image, box) in enumerate(pairs, 1)
    ]
    return {"images": images, "annotations": annotations, "categories": [{"id": 7, "name": "cat"}]}


def write_data_set(folder: Path, count: int, boxes: list[tuple[int, list[float]]] | None = None) -> Path:
    """Write images and `boxes.json` beside them; return the path of the latter."""
    names = [path.name for path in write_images(folder, count)]
    path = folder / "boxes.json"
    path.write_text(json.dumps(coco(names, boxes)))
    return path


class FakeServers:
    """All servers of a run: their failures, and the received requests by URL."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.prompts: list[dict[str, Any]] = []
        self.versions: dict[str, str] = {"sam2_encoder": "1", "sam2_decoder": "1"}
        self.failures: dict[str, SamError] = {}
        """Permanent errors of requests by URL."""
        self.options: dict[str, Any] = {}
        self.lock = threading.Lock()

    def client(self, url: str | None, family: str, **options: Any) -> FakeClient:
        """Replaces SamTritonClient."""
        self.options = options
        return FakeClient(self, url or "default", family)


class FakeClient:
    """A client whose masks are the boxes, and squares of 3 pixels around points.

    A session model would resize each of a run's hundred images to 1024 x 1024 pixels.
    """

    def __init__(self, servers: FakeServers, url: str, family: str) -> None:
        self._servers = servers
        self.url = url
        self.family = get_family(family)

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def models(self) -> dict[str, str]:
        return self._servers.versions

    def encode(self, image: Any) -> Any:
        return SimpleNamespace(family=self.family.name, model="encoder") if image is FIXED_IMAGE else image

    def find(self, texts: list[str], *, image: Any, **parameters: Any) -> list[Instance]:
        """Find two instances of each text except "nothing"."""
        with self._servers.lock:
            self._servers.requests[self.url] += 1
            self._servers.prompts.append({"texts": texts, **parameters})
        (mask,) = _masks({"box": [(2, 3, 12, 11)]})
        found = [(index, place) for index, text in enumerate(texts) if text != "nothing" for place in range(2)]
        return [Instance(mask, 0.9, None, index, place, label=texts[index]) for index, place in found]

    def segment(self, *, image: Any, logits: bool, **prompts: Any) -> list[Segment]:
        given = dict.fromkeys(("point_coords", "point_labels", "box", "mask_input")) | prompts
        check_prompts(**given, image_size=open_image(image).size, mask_size=self.family.mask_size)
        with self._servers.lock:
            if self.url in self._servers.failures:
                raise self._servers.failures[self.url]
            self._servers.requests[self.url] += 1
            self._servers.prompts.append(prompts)
        return [Segment(mask, 0.9, None) for mask in _masks(prompts)]


def _masks(prompts: dict[str, Any]) -> Iterator[np.ndarray]:
    boxes = prompts.get("box") or [(x - 1, y - 1, x + 2, y + 2) for ((x, y), *_) in prompts["point_coords"]]
    for x1, y1, x2, y2 in boxes:
        mask = np.zeros(SIZE[::-1], bool)
        mask[int(y1) : int(y2), int(x1) : int(x2)] = True
        yield mask


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    """Replace the clients of a run."""
    fake = FakeServers()
    monkeypatch.setattr(job, "SamTritonClient", fake.client)
    return fake


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder except the lock."""
    return {name: content for name, content in files_below(folder).items() if ".annotate.lock" not in name}


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON document a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def kept_ids(out: Path) -> set[int]:
    """Return the ids of the images, or tiles, in complete shards."""
    shards = sorted(out.glob("shards/[0-9]*.jsonl"))
    return {record["id"] for path in shards for record in lines_of(path)}
