#!/usr/bin/env python
"""Take the screenshots of the page in docs/images from a running service, with headless Chromium.

The script needs Playwright's Python package and Chromium (Debian: apt-get install chromium).
"""

from __future__ import annotations

import argparse
import io
import shutil
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from triton_sam._common.bundle import bundled
from triton_sam.masks import intersection_over_union, rle_to_mask

VIEWS: tuple[tuple[str, tuple[int, int], Literal["dark", "light"]], ...] = (
    ("page-dark.webp", (1280, 800), "dark"),
    ("page-light.webp", (1280, 800), "light"),
)
POINTS = {"ball": (178, 189, 2), "rectangle": (553, 159, 1), "ring": (402, 354, 5)}
"""Name: x and y on test/images/shapes.jpg, and the object's number in shapes_labels.png."""
QUALITY = 88


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--url", default="http://localhost:5000", help="URL of the service (default: http://localhost:5000)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs/images"), help="folder for the screenshots (default: docs/images)"
    )
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium", help="path of the browser")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    args.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, (width, height), theme in VIEWS:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            page.goto(args.url)
            page.wait_for_selector('#state[data-state="up"]')
            _show(page)
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            shot.save(args.out / name, quality=QUALITY, method=6)
            print(f"{args.out / name}: {(args.out / name).stat().st_size // 1024} KiB")
            page.close()
        browser.close()
    return 0


def _show(page: Any) -> None:
    """Open the sample image and click on its objects."""
    page.click('[data-sample="shapes.jpg"]')
    _wait(page, "Boolean(tritonSam.image) && document.getElementById('busy').hidden")
    page.click('[data-multi="1"]')
    truth = np.asarray(Image.open(bundled("test/images") / "shapes_labels.png"))
    for index, (name, (x, y, number)) in enumerate(POINTS.items()):
        if index:
            page.click("#new-object")
        page.mouse.click(*page.evaluate(f"tritonSam.stage.screenOf({x}, {y})"))
        _wait(page, f"tritonSam.masks.finished.length > {index}")
        page.locator(".candidates button").nth(_best(page, x, y, truth == number)).click()
        field = page.locator(".object input:not(.label)").nth(index)
        field.fill(name)
        field.press("Enter")
    page.mouse.move(640, 20)
    page.wait_for_timeout(500)


def _best(page: Any, x: int, y: int, truth: Any) -> int:
    """Return the index of the candidate with the highest IoU with the object, as a person would choose."""
    answer = page.evaluate(
        """async (prompt) => { const url = `/v1/images/${tritonSam.image.id}/segment`;
        const headers = {"Content-Type": "application/json"};
        return (await fetch(url, {method: "POST", headers, body: JSON.stringify(prompt)})).json(); }""",
        {"points": [[x, y]], "multimask": True},
    )
    masks = [rle_to_mask(mask["rle"]) for mask in answer["masks"]]
    return int(np.argmax([intersection_over_union(mask, truth) for mask in masks]))


def _wait(page: Any, expression: str) -> None:
    deadline = time.monotonic() + 60
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            raise TimeoutError(expression)
        time.sleep(0.05)


if __name__ == "__main__":
    raise SystemExit(main())
