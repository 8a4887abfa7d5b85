#!/usr/bin/env python
"""Take the pictures of the page in docs/images from a running service, with headless Chromium.

Needs Playwright's Python package and a Chromium (Debian: apt-get install chromium).
"""

from __future__ import annotations

import argparse
import io
import shutil
import time
from pathlib import Path
from typing import Any

from PIL import Image

VIEWS = (
    ("page-dark.png", (1280, 800), "dark"),
    ("page-light.png", (1280, 800), "light"),
    ("page-phone.png", (390, 844), "dark"),
)
BOXES = {"ball": (88, 68, 312, 292), "rectangle": (428, 58, 702, 232), "star": (496, 288, 744, 528)}
"""Objects of test/images/shapes.jpg."""
COLORS = 255
"""Of the palette of the PNG files, which keeps them small."""


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://localhost:5000", help="the service (default: http://localhost:5000)")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder (default: docs/images)")
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
            _show(page, by_box=True)
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            small = shot.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
            small.save(args.out / name, optimize=True)
            print(f"{args.out / name}: {(args.out / name).stat().st_size // 1024} KiB")
            page.close()
        browser.close()
    return 0


def _show(page: Any, *, by_box: bool) -> None:
    """Open the sample and mark its objects."""
    page.click('[data-sample="shapes.jpg"]')
    _wait(page, "Boolean(tritonSam.image) && document.getElementById('busy').hidden")
    page.click('[data-multi="1"]')
    for index, (name, (x1, y1, x2, y2)) in enumerate(BOXES.items()):
        if index:
            page.click("#new-object")
        if by_box:
            page.click('[data-tool="box"]')
            page.mouse.move(*page.evaluate(f"tritonSam.screenOf({x1}, {y1})"))
            page.mouse.down()
            page.mouse.move(*page.evaluate(f"tritonSam.screenOf({x2}, {y2})"), steps=5)
            page.mouse.up()
        _wait(
            page,
            f"[...document.querySelectorAll('.facts')].filter((e) => /score/.test(e.textContent)).length > {index}",
        )
        field = page.locator(".object input").nth(index)
        field.fill(name)
        field.press("Enter")
    page.click('[data-tool="add"]')
    page.mouse.move(*page.evaluate("tritonSam.screenOf(780, 590)"))
    page.wait_for_timeout(500)


def _wait(page: Any, expression: str) -> None:
    deadline = time.monotonic() + 60
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            raise TimeoutError(expression)
        time.sleep(0.05)


if __name__ == "__main__":
    raise SystemExit(main())
