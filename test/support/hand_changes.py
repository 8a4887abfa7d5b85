"""Manual changes of masks on the page, and the resulting masks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from triton_sam.masks.rle import rle_to_mask

KINDS = "tritonSam.scene.objects.map((object) => tritonSam.resultOf(object)?.found?.kind ?? null)"


def masks_of(page: Any) -> dict[str, np.ndarray]:
    """Return the masks of the objects by name, from the page's COCO download."""
    coco = json.loads(page.download("#save-coco")[1])
    return {each["name"]: rle_to_mask(each["segmentation"]).astype(bool) for each in coco["annotations"]}


def drag(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.page.mouse.move(*page.at(*start))
    page.page.mouse.down()
    page.page.mouse.move(*page.at(*end), steps=5)
    page.page.mouse.up()


def edited(page: Any, index: int) -> None:
    page.wait(f"{KINDS}[{index}] === 'edited'")
