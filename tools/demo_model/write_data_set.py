#!/usr/bin/env python3
"""Write a data set that training does not use as a folder for `triton-sam evaluate --dataset FOLDER`.

  tools/demo_model/write_data_set.py photos test/output/photos
  tools/demo_model/write_data_set.py composites test/output/composites --materials runs/materials --count 50

photos: photographs that Python packages carry, with outlines drawn by hand or the masks that come with them. The list
photos.json has their SHA-256, so that a changed file never gets a wrong ground truth. Each outline was drawn as a
polygon, moved to the nearest edge by GrabCut (Rother et al., 2004) inside a band of 3 to 8 pixels around it, and
visually checked. collect_materials.py refuses these photographs for training.

composites: cut-outs over photographs, neither used for training.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from triton_sam._common.extras import find_package
from triton_sam._common.process import run_program
from triton_sam.errors import ConfigurationError

_MIN_AREA = 400  # pixels; users would not click smaller pieces of chairs in the photograph of VOC
_SHARED = 0.01  # share of an object that may belong to another one of the same label map

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Photo:
    """One photograph of a package.

    Args:
        masks: path in the package of a .npz file with its masks: integers (N, H, W) named "masks", 1 where object n is
            visible.
    """

    package: str
    file: str
    sha256: str
    objects: tuple[tuple[str, tuple[int, ...]], ...] = ()
    masks: str = ""
    masks_sha256: str = ""

    def find(self) -> Path | None:
        """Return the path of the photograph; None if the files are missing or different on this machine."""
        root = _folder(self.package)
        files = [(self.file, self.sha256), (self.masks, self.masks_sha256)]
        if root is None or any(name and _sha256(root / name) != expected for name, expected in files):
            return None
        return root / self.file

    def read_masks(self, shape: tuple[int, int]) -> list[Mask]:
        """Return the mask of each object, bool (H, W). Masks may overlap (a cup and the coffee in it).

        Args:
            shape: (H, W) of the photograph.
        """
        if not self.masks:
            return [_fill(outline, shape) for _, outline in self.objects]
        root = _folder(self.package)
        if root is None:
            raise ConfigurationError(f"the package {self.package} is missing: install it")
        with np.load(root / self.masks) as content:
            masks = [np.asarray(mask == 1) for mask in content["masks"]]
        return [mask for mask in masks if mask.sum() >= _MIN_AREA]


@dataclass(frozen=True, eq=False)
class Labelled:
    """An image with known objects.

    Args:
        labels: uint8 (H, W), the number of the object at each pixel, or 0.
    """

    name: str
    image: Image.Image
    labels: NDArray[np.uint8]


def open_photos() -> Iterator[Labelled]:
    """Yield the available photographs, and print the missing ones.

    A photograph with nested objects yields several images, because a label map has one object per pixel.
    """
    for photo in read_list():
        path = photo.find()
        if path is None:
            print(f"left out, since its package is missing or has another file: {photo.package}/{photo.file}")
            continue
        with Image.open(path) as image:
            pixels = image.convert("RGB")
        for number, labels in enumerate(_layers(photo, (pixels.height, pixels.width)), 1):
            yield Labelled(f"{Path(photo.file).stem} {number}", pixels, labels)


def read_list() -> tuple[Photo, ...]:
    """Return all photographs, including missing ones."""
    content = json.loads(Path(__file__).with_name("photos.json").read_text(encoding="utf-8"))
    return tuple(_photo(entry) for entry in content)


def hashes() -> frozenset[str]:
    """Return the SHA-256 of all photographs, which must not be used for training."""
    return frozenset(photo.sha256 for photo in read_list())


def _photo(entry: dict[str, Any]) -> Photo:
    objects = tuple((item["name"], tuple(item["outline"])) for item in entry.get("objects", ()))
    return Photo(**{**entry, "objects": objects})


def _folder(package: str) -> Path | None:
    """Return the folder of an installed package without importing it."""
    spec = find_package(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@cache
def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _fill(outline: tuple[int, ...], shape: tuple[int, int]) -> Mask:
    """Return the mask inside an outline, with the outline."""
    stencil = Image.new("1", (shape[1], shape[0]))
    ImageDraw.Draw(stencil).polygon(list(outline), fill=1, outline=1)
    return np.asarray(stencil, bool)


def _layers(photo: Photo, shape: tuple[int, int]) -> list[NDArray[np.uint8]]:
    """Return label maps, uint8 (H, W), in which no object hides another one."""
    layers: list[NDArray[np.uint8]] = []
    for mask in sorted(photo.read_masks(shape), key=lambda mask: -int(mask.sum())):
        layer = next((item for item in layers if (item[mask] > 0).mean() < _SHARED), None)
        if layer is None:
            layer = np.zeros(shape, np.uint8)
            layers.append(layer)
        layer[mask & (layer == 0)] = int(layer.max()) + 1
    return layers


def main() -> int:
    """Write the images and their label maps."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("kind", choices=("photos", "composites"))
    options.add_argument("folder", type=Path)
    options.add_argument("--materials", type=Path, help="folder that collect_materials.py wrote, for composites")
    options.add_argument("--count", type=int, default=50, help="number of composites (default: 50)")
    given = options.parse_args()
    if given.kind == "composites" and given.materials is None:
        raise ConfigurationError("composites need --materials")
    given.folder.mkdir(parents=True, exist_ok=True)
    found = open_photos() if given.kind == "photos" else _composites(given.materials, given.count)
    for sample in found:
        sample.image.save(given.folder / f"{sample.name}.png")
        Image.fromarray(sample.labels).save(given.folder / f"{sample.name}_labels.png")
        print(f"{sample.name}: {int(sample.labels.max())} objects")
    return 0


def _composites(folder: Path, count: int) -> Iterator[Labelled]:
    from tools.demo_model.composites import held_out_composite
    from tools.demo_model.materials import Materials

    materials = Materials(folder, held_out=True)
    for number in range(count):
        scene = held_out_composite(materials, number)
        yield Labelled(f"composite {number}", Image.fromarray(scene.image), scene.labels)


if __name__ == "__main__":
    sys.exit(run_program(main))
