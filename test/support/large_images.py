"""Large images with known objects, in every format, and a client that finds the objects by colour."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tifffile
from support.rectangles import found_mask

from triton_sam.client.server_models import FIXED_IMAGE
from triton_sam.concepts.instances import Instance
from triton_sam.errors import InferenceError, PromptError
from triton_sam.everything.search import Found
from triton_sam.families import get_family
from triton_sam.inputs.embeddings import ImageEmbeddings
from triton_sam.inputs.images import open_image
from triton_sam.masks.segment import Segment

SIZE = (3000, 2200)
GROUND = 40
PLACE = [
    (33550, "d", 3, (0.5, 0.5, 0.0), True),
    (33922, "d", 6, (0.0, 0.0, 0.0, 500000.0, 5400000.0, 0.0), True),
    (34735, "H", 16, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633), True),
]
"""Tags of a GeoTIFF file: 0.5 m a pixel, the upper left corner at 500000, 5400000, in EPSG:32633."""


def draw(objects: list[tuple[int, int, int, int]], size: tuple[int, int] = SIZE) -> np.ndarray:
    """Return an image (h,w,3) with rectangles x1, y1, x2, y2, in different greys on a dark background."""
    pixels = np.full((size[1], size[0], 3), GROUND, np.uint8)
    for number, (x1, y1, x2, y2) in enumerate(objects, 1):
        pixels[y1:y2, x1:x2] = 60 + 10 * number % 190
    return pixels


def write_tiff(path: Path, pixels: np.ndarray, levels: int = 3, **options: Any) -> Path:
    """Write a tiled TIFF file with a pyramid."""
    kind: dict[str, Any] = {
        "tile": (256, 256),
        "compression": "zlib",
        **({"photometric": "rgb"} if pixels.ndim == 3 else {}),
    }
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        writer.write(pixels, subifds=levels - 1, **kind, **options)
        for level in range(1, levels):
            writer.write(pixels[:: 2**level, :: 2**level], subfiletype=1, **kind)
    return path


def write_zarr(path: Path, pixels: np.ndarray, levels: int = 3) -> Path:
    """Write an OME-Zarr image of version 0.5 with the axes c, y, x."""
    import zarr

    group: Any = zarr.open_group(path, mode="w")
    for level in range(levels):
        part = np.moveaxis(pixels[:: 2**level, :: 2**level], 2, 0)
        array = group.create_array(str(level), shape=part.shape, chunks=(1, 256, 256), dtype=part.dtype)
        array[:] = part
    axes = [{"name": "c", "type": "channel"}, {"name": "y", "type": "space"}, {"name": "x", "type": "space"}]
    datasets = [{"path": str(level)} for level in range(levels)]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    return path


class ColourClient:
    """A client that segments the connected colour under a prompt, and finds an object for each colour.

    Its masks have the pixels of the drawn objects, which the small logits of a network cannot have.
    """

    def __init__(self, *_: object, **__: object) -> None:
        self.encoded: list[np.ndarray] | deque[np.ndarray] = []

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def encode(self, pixels: Any) -> Any:
        self.encoded.append(pixels)
        return SimpleNamespace(family="sam2", model="encoder") if pixels is FIXED_IMAGE else pixels

    def segment(
        self, points: Any, labels: Any, box: Any, multimask_output: bool, image: Any, logits: bool
    ) -> list[Segment]:
        x, y = points[0] if points is not None else ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        if not (0 <= x <= image.shape[1] and 0 <= y <= image.shape[0]):
            raise PromptError("outside")
        color = image[min(int(y), image.shape[0] - 1), min(int(x), image.shape[1] - 1), 0]
        mask = np.asarray(image[:, :, 0] == color)
        return [Segment(mask, 0.9 - number / 10, None, 0, number) for number in range(3 if multimask_output else 1)]

    def everything(self, pixels: np.ndarray, **_: Any) -> list[Segment]:
        self.encoded.append(pixels)
        if not isinstance(pixels, np.ndarray):
            return []  # the small search of an estimate
        colors = np.flatnonzero(np.bincount(pixels[:, :, 0].ravel()))
        return [Segment(pixels[:, :, 0] == color, 0.9, None) for color in colors if color != GROUND]


class ColourServer(ColourClient):
    """Replaces SamTritonClient in a run: some objects of a search, a pause for each tile, damaged tiles."""

    url = "fake"
    pause = 0.0
    refused = 0
    """Number of next tiles that the server refuses."""

    def __init__(self, url: str | None = None, family: str = "sam2", **_: Any) -> None:
        super().__init__()
        self.encoded = deque(maxlen=1)  # all tiles of a large image would exceed the memory
        self.family = get_family(family)

    def models(self) -> dict[str, str]:
        roles = ("encoder", "decoder", *self.family.concepts)
        return {f"{self.family.name}_{role}": "1" for role in roles}

    def segment(self, point_coords: Any = None, point_labels: Any = None, box: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Segment several objects, each with one point or a box."""
        count = len(point_coords if point_coords is not None else box)
        found = []
        for number in range(count):
            points = None if point_coords is None else point_coords[number]
            corners = None if box is None else box[number]
            found += super().segment(points, None, corners, False, options["image"], False)
        return found

    def find(self, texts: list[str], *, image: Any, **_: Any) -> list[Instance]:
        """Find an object of each colour for each text."""
        found = list(enumerate(super().everything(image)))
        return [
            Instance(each.mask, 0.9, None, text, place, label=texts[text])
            for text in range(len(texts))
            for place, each in found
        ]

    def everything(self, pixels: np.ndarray, **_: Any) -> list[Segment]:
        time.sleep(self.pause)
        if ColourServer.refused:
            ColourServer.refused -= 1
            raise InferenceError("the model failed")
        return super().everything(pixels)

    def search_steps(self, pixels: np.ndarray, _: Any) -> Iterator[Found]:
        yield Found([found_mask(each.mask) for each in self.everything(pixels)])


class TileClient(ColourClient):
    """A client whose embeddings are random mixtures of a tile's pixels, so that equal tiles have equal embeddings."""

    def __init__(self, url: str | None = None, family: str = "sam1", seed: int = 1, **_: Any) -> None:
        super().__init__()
        self.family = get_family(family)
        self._seed = seed
        self.decoded: np.ndarray | None = None

    def encode(self, pixels: Any) -> Any:
        return self.encode_here(pixels)

    def encode_here(self, pixels: Any) -> ImageEmbeddings:
        self.encoded.append(pixels)
        image = open_image(pixels)
        small = np.asarray(image.resize((64, 64)), np.float32).mean(axis=2)
        mix = np.random.default_rng(self._seed).normal(0, 1, 256).astype(np.float32)
        tensors = {"image_embeddings": (mix[:, None, None] * (small + 1))[None]}
        return ImageEmbeddings(self.family.name, f"{self.family.name}_encoder", image.size, tensors)

    def segment(self, *_: Any, image: Any, **__: Any) -> list[Segment]:  # type: ignore[override]
        self.decoded = image["image_embeddings"]
        width, height = image.image_size
        mask = np.zeros((height, width), bool)
        mask[height // 2, width // 2] = True
        return [Segment(mask, 0.9, None, 0, 0)]
