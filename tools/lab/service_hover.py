#!/usr/bin/env python
"""Measure the hover preview of a running service's page in headless Chromium: 60 mouse moves per second for 3 seconds.

The script needs Playwright's Python package and Chromium (Debian: apt-get install chromium). With --triton it also
reads the number of decodes from Triton's own counters. The exit code is 1 when a threshold is missed.
"""

from __future__ import annotations

import argparse
import functools
import math
import shutil
import statistics
import sys
import time
from typing import Any

from triton_sam._common.text import first_line
from triton_sam.benchmark.server_counts import decode_counter
from triton_sam.errors import SamError
from triton_sam.transport import Transport
from triton_sam.transport.url import parse_url, usual_metrics_url

MS_LIMIT = 150
SECONDS_TO_OPEN = 60.0
SPARE_DECODES = 2
SINGLE_MOVES = 7


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--url", default="http://localhost:5000", help="URL of the service (default: http://localhost:5000)"
    )
    parser.add_argument("--triton", help="URL of Triton, to count decodes")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of the mouse path (default: 3)")
    parser.add_argument("--rate", type=float, default=60.0, help="mouse moves per second (default: 60)")
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium", help="path of the browser")
    args = parser.parse_args()
    from playwright.sync_api import Error, sync_playwright

    try:
        return _measure(args, sync_playwright)
    except (Error, TimeoutError, SamError) as error:
        print(f"service_hover: error: {first_line(error)}", file=sys.stderr)
        return 1


def _measure(args: argparse.Namespace, sync_playwright: Any) -> int:

    triton = Transport(parse_url(args.triton)) if args.triton else None

    def decodes() -> int:
        time.sleep(1.0)  # Triton updates its counters after it has answered
        return (counter() if counter else None) or 0

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(args.url)
        page.click('[data-sample="shapes.jpg"]')
        deadline = time.monotonic() + SECONDS_TO_OPEN
        while not page.evaluate("Boolean(tritonSam.image) && document.getElementById('busy').hidden"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the page did not open its sample image within {SECONDS_TO_OPEN:g} s")
            time.sleep(0.1)
        x, y = page.evaluate("tritonSam.screenOf(400, 300)")
        page.mouse.move(x, y)
        time.sleep(1.0)
        counter = None
        if triton:
            metrics_url = usual_metrics_url(parse_url(args.triton))
            move = functools.partial(_time_one_move, page, x, y + 10)
            counter = decode_counter(triton, "sam2_decoder", "sam2", metrics_url, move)
        alone = statistics.median(_time_one_move(page, x + 10 * step, y) for step in range(SINGLE_MOVES))
        page.evaluate("tritonSam.stats.hover.length = 0")
        before = decodes()
        page.evaluate(_MOVE, [x, y, args.seconds, args.rate])
        time.sleep(2.0)
        painted = page.evaluate("tritonSam.stats.hover.map((mask) => mask.painted - mask.moved)")
        moved = page.evaluate("tritonSam.moved")
        inside = page.evaluate("tritonSam.stats.hover.map((mask) => mask.ms)")
        computed = decodes() - before
        time.sleep(1.0)
        later = decodes() - before
        browser.close()
    if not painted:
        print("service_hover: no mask was painted", file=sys.stderr)
        return 1
    median = statistics.median(painted)
    p95 = sorted(painted)[math.ceil(0.95 * len(painted)) - 1]
    print(f"moves {moved}, masks painted {len(painted)}, from event to mask ms: p50 {median:.0f}, p95 {p95:.0f}")
    print(f"share of the service and Triton: p50 {statistics.median(inside):.0f}")
    print(f"a single move: {alone:.0f} ms; p50 is {median / alone:.1f} times that")
    missed = median > MS_LIMIT
    if counter and counter() is None:
        print("the server reports no count of decodes")
    elif counter:
        print(f"decodes {computed}, and {later} a second later")
        missed = missed or computed > len(painted) + SPARE_DECODES or later != computed
    return int(missed)


def _time_one_move(page: Any, x: float, y: float) -> float:
    """Move the mouse once and wait for the mask. Return the milliseconds from the event to the mask."""
    before = page.evaluate("tritonSam.stats.hover.length")
    page.mouse.move(x, y)
    deadline = time.monotonic() + 60
    while page.evaluate("tritonSam.stats.hover.length") == before and time.monotonic() < deadline:
        time.sleep(0.02)
    return float(page.evaluate("tritonSam.stats.hover.at(-1).painted - tritonSam.stats.hover.at(-1).moved"))


_MOVE = """async ([x, y, seconds, rate]) => {
  const canvas = document.getElementById("canvas");
  const began = performance.now();
  let count = 0;
  while (performance.now() - began < seconds * 1000) {
    const angle = count / 20;
    canvas.dispatchEvent(new PointerEvent("pointermove", {
      clientX: x + 200 * Math.cos(angle), clientY: y + 150 * Math.sin(angle), pointerId: 1, pointerType: "mouse",
      bubbles: true,
    }));
    count += 1;
    const next = began + (count * 1000) / rate;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, next - performance.now())));
  }
  tritonSam.moved = count;
}"""


if __name__ == "__main__":
    raise SystemExit(main())
