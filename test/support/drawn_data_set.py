"""A COCO data set of drawn scenes, with the true box of each object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triton_sam.masks import mask_to_box
from triton_sam.scenes.scenes import generate_scene

SIDE = 320


def write_scenes(folder: Path, count: int, objects: int = 4) -> Path:
    """Write scenes as PNG, and `boxes.json` with their first objects beside them; return the path of the latter."""
    folder.mkdir(parents=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        scene = generate_scene(number, SIDE)
        name = f"{number:04}.png"
        Image.fromarray(scene.image).save(folder / name)
        images.append({"id": number, "file_name": name, "width": SIDE, "height": SIDE})
        for mask in scene.masks[:objects]:
            x1, y1, x2, y2 = mask_to_box(np.asarray(mask)) or (0, 0, 1, 1)
            entry = {"id": len(annotations) + 1, "image_id": number, "category_id": 1 + len(annotations) % 2}
            annotations.append({**entry, "bbox": [x1, y1, x2 - x1, y2 - y1]})
    categories = [{"id": 1, "name": "even"}, {"id": 2, "name": "odd"}]
    path = folder / "boxes.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path
