"""Changes of masks by hand on the page, and the masks that come of them."""

from __future__ import annotations

import json

from triton_sam.masks.rle import rle_to_mask

KINDS = "tritonSam.scene.objects.map((object) => tritonSam.resultOf(object)?.found?.kind ?? null)"


def masks_of(page):
    """The masks of the objects, by name, from the page's COCO download."""
    coco = json.loads(page.download("#save-coco")[1])
    return {each["name"]: rle_to_mask(each["segmentation"]).astype(bool) for each in coco["annotations"]}


def drag(page, start, end):
    page.page.mouse.move(*page.at(*start))
    page.page.mouse.down()
    page.page.mouse.move(*page.at(*end), steps=5)
    page.page.mouse.up()


def edited(page, index):
    page.wait(f"{KINDS}[{index}] === 'edited'")
