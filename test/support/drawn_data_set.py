"""A COCO data set of drawn scenes, with the true box of each object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from triton_sam._common import strict_json
from triton_sam.masks import mask_to_box
from triton_sam.masks.boxes import corner_and_size

SIDE = 320
OBJECTS = 4
"""Maximum number of boxes per scene."""


def write_scenes(folder: Path, count: int, side: int = SIDE, objects: int | None = OBJECTS) -> Path:
    """Write scenes as PNG, and `boxes.json` beside them; return the path of the latter.

    Args:
        folder: a new folder.
        count: number of scenes; scene i has the seed i, from 1.
        side: their width and height in pixels.
        objects: number of objects of each scene with a box; None: all objects and their parts.
    """
    from triton_sam.scenes.scenes import generate_scene

    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        scene = generate_scene(number, side)
        name = f"{number:04}.png"
        Image.fromarray(scene.image).save(folder / name)
        images.append({"id": number, "file_name": name, "width": side, "height": side})
        for mask in scene.masks[:objects]:
            entry = {"id": len(annotations) + 1, "image_id": number, "category_id": 1 + len(annotations) % 2}
            annotations.append({**entry, "bbox": corner_and_size(mask_to_box(mask))})
    categories = [{"id": 1, "name": "odd"}, {"id": 2, "name": "even"}]
    path = folder / "boxes.json"
    path.write_text(strict_json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path
