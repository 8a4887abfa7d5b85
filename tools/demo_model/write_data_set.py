#!/usr/bin/env python3
"""Write a data set that training does not use as a folder for `triton-sam evaluate --dataset FOLDER`.

  tools/demo_model/write_data_set.py photos test/output/photos
  tools/demo_model/write_data_set.py composites test/output/composites --materials runs/materials --count 50

photos: photographs that Python packages carry, with outlines drawn by hand or the masks that come with them.
composites: cut-outs over photographs, neither used for training.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from PIL import Image

from tools.demo_model.photos import Labelled, open_photos
from triton_sam.commands._options import run_script
from triton_sam.errors import ConfigurationError


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
    sys.exit(run_script(main))
